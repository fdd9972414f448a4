//! scratch
use bursar_kernel::*; use bursar_model::*; use std::time::*;
fn main(){
  let n:u32=std::env::args().nth(1).unwrap().parse().unwrap();
  let root=std::path::PathBuf::from(format!("/sys/fs/bpf/spike-{}",std::process::id()));
  let o=Options{max_processes:32768,max_accounts:4096,events_bytes:256<<10,possible_cpus:2,page_size:PageSize::new(4096).unwrap(),count_file:false,event_trigger:true,timer_trigger:true};
  let (mut h,_)=KernelHalf::start(&root,&o).unwrap();
  let set=Settings{uid_min:Uid::new(1000),exempt:vec![],raised_adj:None};
  h.configure(&set).unwrap();
  let p=|m:u64|Some(Pages::new(m*256));
  let mut slots=vec![];
  for u in 0..200 { let slot=h.books().open_account(AccountId::of(Uid::new(60000+u)),false,false,History::default()).unwrap();
  h.books().set_bounds(slot,PageBounds{limit:p(1024),barrier:p(1000),notice:p(900)}).unwrap(); slots.push(slot);}
  h.take_charge(&set).unwrap();
  let hog=std::path::PathBuf::from(std::env::var("HOG").unwrap());
  let mut kids:Vec<_>=(0..200).map(|i|std::process::Command::new(&hog).args([format!("uid={}",60000+i),"hold=64K".into(),format!("fork={}",n/200),"pause".into()]).spawn().unwrap()).collect();
  std::thread::sleep(Duration::from_secs(3));
  for _ in 0..5 { std::thread::sleep(Duration::from_millis(500)); let f=h.facts().unwrap(); println!("resum {} us  max {} tasks {} missed {} stale {} drift {} settles max {}us",f.resum.get()/1000,f.resum_max.get()/1000,f.resum_processes,f.missed_processes,f.stale_records,f.drift_repaired.get(),f.decision_max.get()/1000); }
  let tot:u64=h.books().accounts().map(|a|a.held.get()).sum(); println!("held total pages {tot} procs {}",h.books().accounts().map(|a|a.processes).sum::<u32>());
  // breach in one account
  let j=h.journal().unwrap();
  let t=Instant::now(); h.books().set_bounds(slots[3],PageBounds{limit:p(2),barrier:p(2),notice:p(1)}).unwrap(); println!("set {:?}",t.elapsed());
  std::thread::sleep(Duration::from_millis(300));
  for e in j.drain().unwrap().iter().take(6){println!("{:?} {:?} lat {} us met {}",e.kind,e.trigger,e.latency.get()/1000,e.candidates_met)}
  for p in std::fs::read_dir("/proc").unwrap(){ let p=p.unwrap(); if let Ok(pid)=p.file_name().to_string_lossy().parse::<i32>(){ if let Ok(s)=std::fs::read_to_string(p.path().join("status")){ if s.lines().any(|l|l.starts_with("Uid:\t600")||l.starts_with("Uid:\t601")){ unsafe{libc::kill(pid,9);} } } } }
  for k in &mut kids{let _=k.kill(); k.wait().unwrap();}
  std::thread::sleep(Duration::from_millis(1500));
  let tot:u64=h.books().accounts().map(|a|a.held.get()).sum(); let f=h.facts().unwrap(); println!("after: held {tot} procs {} drift {} {} stale {} missed {} skipped {}",h.books().accounts().map(|a|a.processes).sum::<u32>(),f.drift_repairs,f.drift_repaired.get(),f.stale_records,f.missed_processes,f.skipped_runs);
  KernelHalf::release(&root).unwrap();
}
