//! scratch
use bursar_kernel::*; use bursar_model::*; use std::time::*;
fn main(){
  let uid:u32=60001; let mib:u64=std::env::args().nth(1).unwrap().parse().unwrap(); let procs=std::env::args().nth(2).unwrap(); let event=std::env::args().nth(3).map_or(true,|s|s!="timer");
  let root=std::path::PathBuf::from(format!("/sys/fs/bpf/spike-{}",std::process::id()));
  let cpus=std::thread::available_parallelism().unwrap().get() as u32;
  let o=Options{max_processes:32768,max_accounts:4096,events_bytes:256<<10,possible_cpus:cpus,page_size:PageSize::new(4096).unwrap(),count_file:false,event_trigger:event,timer_trigger:true};
  let t=Instant::now(); let (mut h,s)=KernelHalf::start(&root,&o).unwrap(); println!("{s:?} in {:?}",t.elapsed());
  for p in libbpf_rs::query::ProgInfoIter::default(){ println!("prog {:?} verified {}",p.name,p.verified_insns); }
  let set=Settings{uid_min:Uid::new(1000),exempt:vec![],raised_adj:None};
  h.configure(&set).unwrap();
  let slot=h.books().open_account(AccountId::of(Uid::new(uid)),false,false,History::default()).unwrap();
  let p=|m:u64|Some(Pages::new(m*256));
  h.books().set_bounds(slot,PageBounds{limit:p(mib),barrier:p(mib),notice:Some(Pages::new(mib*256*9/10))}).unwrap();
  h.take_charge(&set).unwrap();
  println!("in charge {:?}",t.elapsed());
  let j=h.journal().unwrap();
  let hog=std::path::PathBuf::from(std::env::var("HOG").unwrap());
  let n:usize=procs.parse().unwrap();
  let mut kids:Vec<_>=(0..n).map(|_|std::process::Command::new(&hog).args([format!("uid={uid}"),"hold=256M".into(),"pause".into()]).spawn().unwrap()).collect();
  let t=Instant::now();
  while t.elapsed()<Duration::from_secs(8){ std::thread::sleep(Duration::from_millis(20)); for e in j.drain().unwrap(){ let over=e.held.get() as i64-e.limit.map_or(0,|l|l.get() as i64); println!("{:?} {:?} {} held {} over {} pages victim {} lat {}us dying {} met {} {:?}",e.trigger,e.kind,e.pid,e.held.get(),over,e.victim.get(),e.latency.get()/1000,e.dying.get(),e.candidates_met,e.candidates.iter().map(|c|(c.pid.get(),c.pages.get(),String::from_utf8_lossy(&c.comm).into_owned())).collect::<Vec<_>>()); }
    if kids.iter_mut().all(|k|k.try_wait().unwrap().is_some()){break} }
  for k in &mut kids{ let _=k.kill(); println!("{:?} ",k.wait().unwrap());}
  std::thread::sleep(Duration::from_millis(500));
  for e in j.drain().unwrap(){println!("late {:?} {} {}",e.kind,e.pid,e.latency.get()/1000)}
  println!("{:?}",h.books().account(slot)); println!("{:?}",h.facts());
  println!("released {}",KernelHalf::release(&root).unwrap());
}
