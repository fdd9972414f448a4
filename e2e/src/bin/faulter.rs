// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `faulter WAY …`: takes page faults in a known way. Some ways say what getrusage counted, others say
//! `ready`, wait a moment, take so many faults and sleep.

use std::ffi::CStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::ptr::null_mut;
use std::time::Duration;

use bursar_host::clock::thread_cpu_time;

fn page_size() -> usize {
    // SAFETY: no pointers.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn faults() -> (i64, i64) {
    // SAFETY: plain data that the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a live local.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    (usage.ru_minflt, usage.ru_majflt)
}

fn touch_new(pages: usize) {
    touch(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
}

fn touch(pages: usize, flags: i32, file: i32) {
    let size = page_size();
    // SAFETY: a fresh mapping, touched inside, given back.
    unsafe {
        let base = libc::mmap(
            null_mut(),
            pages * size,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            file,
            0,
        );
        assert!(base != libc::MAP_FAILED);
        libc::madvise(base, pages * size, libc::MADV_NOHUGEPAGE);
        for page in 0..pages {
            base.cast::<u8>()
                .add(page * size + size / 2)
                .write_volatile(1);
        }
        libc::munmap(base, pages * size);
    }
}

/// Says `ready`; what is touched for that, and to sleep, has been touched before.
fn ready() {
    std::thread::sleep(Duration::from_millis(1));
    println!("ready");
    std::io::stdout().flush().expect("stdout");
    let is_guest = std::env::var_os("BURSAR_VM").is_some();
    std::thread::sleep(Duration::from_millis(if is_guest { 3500 } else { 1200 }));
}

/// Takes no faults any more, and ends.
fn idle(status: usize) -> ! {
    let [moment, while_] = [0, 500_000_000].map(|tv_nsec| libc::timespec { tv_sec: 0, tv_nsec });
    let sleep = |span: &libc::timespec| {
        // SAFETY: a pointer to a live local; nothing is written.
        unsafe { libc::syscall(libc::SYS_nanosleep, std::ptr::from_ref(span), 0) };
    };
    sleep(&moment);
    println!("ready");
    std::io::stdout().flush().expect("stdout");
    sleep(&while_);
    // By the way that was used before: what ends a program otherwise is touched for the first time.
    // SAFETY: ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    unreachable!()
}

/// A fresh mapping of small pages.
fn fresh(pages: usize, flags: i32, file: i32) -> *mut u8 {
    // SAFETY: a fresh mapping where the kernel likes; advice for it.
    unsafe {
        let base = libc::mmap(
            null_mut(),
            pages * page_size(),
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            file,
            0,
        );
        assert!(base != libc::MAP_FAILED);
        libc::madvise(base, pages * page_size(), libc::MADV_NOHUGEPAGE);
        base.cast()
    }
}

/// Touches so many pages of anonymous memory, one after the other, and sleeps.
fn touching(pages: usize, each: impl Fn(*mut u8)) -> ! {
    let base = fresh(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    ready();
    for page in 0..pages {
        // SAFETY: inside the mapping.
        each(unsafe { base.add(page * page_size()) });
        std::thread::sleep(Duration::from_millis(2));
    }
    loop {
        std::thread::park();
    }
}

/// While the frame pointer is none, as in most programs of distributions: whoever follows it reads memory
/// that is not there.
#[inline(never)]
fn touch_without_frame(page: *mut u8) {
    // SAFETY: a writable page; the register is put back, and nothing is called meanwhile.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "mov {kept}, x29",
            "mov x29, 16",
            "strb {one:w}, [{page}]",
            "mov x29, {kept}",
            kept = out(reg) _,
            one = in(reg) 1,
            page = in(reg) page,
        );
    }
    // SAFETY: as there.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "mov {kept}, rbp",
            "mov rbp, 16",
            "mov byte ptr [{page}], 1",
            "mov rbp, {kept}",
            kept = out(reg) _,
            page = in(reg) page,
        );
    }
}

/// Between touches, faults that are not served: the handler goes on behind the access.
fn handled(pages: usize) -> ! {
    extern "C" fn skip(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel's context of the interrupted instruction, which is two bytes long.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            let context = context.cast::<libc::ucontext_t>();
            (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += 2;
        }
        // SAFETY: as there, but four bytes long.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            let context = context.cast::<libc::ucontext_t>();
            (*context).uc_mcontext.pc += 4;
        }
    }
    let base = fresh(1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    // SAFETY: a handler that changes the context only; our own page.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = skip as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &action, null_mut());
        assert!(libc::mprotect(base.cast(), page_size(), libc::PROT_NONE) == 0);
    }
    // `mov al, [rdi]` is two bytes long.
    let provoke = || {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the handler steps over it.
        unsafe {
            std::arch::asm!(".byte 0x8a, 0x07", in("rdi") base, out("al") _);
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the handler steps over it.
        unsafe {
            std::arch::asm!("ldrb {byte:w}, [{base}]", base = in(reg) base, byte = out(reg) _);
        }
    };
    // The handler's own pages are touched before the start.
    provoke();
    touching(pages, |page| {
        for _ in 0..5 {
            provoke();
        }
        // SAFETY: a writable page.
        unsafe { page.write_volatile(1) };
    })
}

/// Pages that a child shares.
fn forked(pages: usize) -> ! {
    let base = fresh(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    for page in 0..pages {
        // SAFETY: inside the mapping.
        unsafe { base.add(page * page_size()).write_volatile(1) };
    }
    // SAFETY: the child only waits, and ends with us.
    unsafe {
        if libc::fork() == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    }
    ready();
    for page in 0..pages {
        // SAFETY: inside the mapping.
        unsafe { base.add(page * page_size()).write_volatile(2) };
    }
    loop {
        std::thread::park();
    }
}

/// The last word.
fn pages_of(words: &[String]) -> usize {
    let last = words.last().and_then(|word| word.parse().ok());
    last.expect("a number of pages")
}

/// Pages of a file, or of a memfd, that are shared; written once before, and written back, if asked for.
fn shared(name: &CStr, path: &str, pages: usize, is_written_before: bool) -> ! {
    use std::os::fd::IntoRawFd;
    let file = if path == "memfd" {
        // SAFETY: a name that lives.
        unsafe { libc::memfd_create(name.as_ptr(), 0) }
    } else {
        let file = std::fs::File::options().read(true).write(true).open(path);
        file.expect("the file").into_raw_fd()
    };
    // SAFETY: a descriptor of ours.
    assert!(file >= 0 && unsafe { libc::ftruncate(file, (pages * page_size()) as i64) } == 0);
    let base = fresh(pages, libc::MAP_SHARED, file);
    if is_written_before {
        for page in 0..pages {
            // SAFETY: inside the mapping and the file.
            unsafe { base.add(page * page_size()).write_volatile(1) };
        }
        // SAFETY: our own mapping, locked as far as that goes, and a descriptor of ours.
        unsafe {
            libc::mlock(base.cast(), pages * page_size());
            assert!(libc::fsync(file) == 0);
        }
    }
    ready();
    for page in 0..pages {
        // SAFETY: as above.
        unsafe { base.add(page * page_size()).write_volatile(2) };
    }
    loop {
        std::thread::park();
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let number = || {
        words
            .get(2)
            .and_then(|word| word.parse().ok())
            .expect("a number")
    };
    match words.get(1).map(String::as_str) {
        // Then ends at once, without anything that could fault.
        Some("known") => {
            touch_new(number());
            let threads: Vec<_> = (0..3)
                .map(|_| std::thread::spawn(|| touch_new(100)))
                .collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().expect("a thread"));
            let (minor, major) = faults();
            println!("own {minor} {major}");
        }
        // Maps, touches, gives back: nanoseconds of processor time per page for each round.
        Some("storm") => {
            for _ in 0..number() {
                let began = thread_cpu_time().get();
                for _ in 0..8 {
                    touch_new(2048);
                }
                println!("{}", (thread_cpu_time().get() - began) / (8 * 2048));
            }
        }
        // Three of four faults in anonymous memory, one in a file's.
        Some("mixed") => {
            const PAGES: usize = 1024;
            // SAFETY: a name that lives; touched inside its size.
            let file = unsafe { libc::memfd_create(c"mixed".as_ptr(), 0) };
            let length = (PAGES * page_size()) as i64;
            // SAFETY: as above.
            assert!(file >= 0 && unsafe { libc::ftruncate(file, length) } == 0);
            for _ in 0..number() {
                touch_new(3 * PAGES);
                touch(PAGES, libc::MAP_PRIVATE, file);
            }
            let (minor, major) = faults();
            println!("own {minor} {major}");
        }
        // A control loop that allocates: malloc maps and unmaps 40 MiB each time, 200 pages touched.
        Some("churn") => {
            // A guest's kernel would serve each block with one huge page.
            // SAFETY: numbers only.
            unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
            println!("ready");
            std::io::stdout().flush().expect("stdout");
            loop {
                // SAFETY: a block of malloc's, touched inside, given back.
                unsafe {
                    let block = libc::malloc(40 << 20).cast::<u8>();
                    assert!(!block.is_null());
                    for page in 0..200 {
                        block.add(page * page_size()).write_volatile(1);
                    }
                    libc::free(block.cast());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Some("idle") => idle(number()),
        Some("frame") => touching(number(), touch_without_frame),
        Some("handled") => handled(number()),
        Some("forked") => forked(number()),
        Some("written-back") => shared(c"written-back", &words[2], pages_of(&words), true),
        Some("shared") => shared(c"shared", &words[2], pages_of(&words), false),
        Some("small-pages") => {
            // SAFETY: numbers only.
            unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
            let error = std::process::Command::new(&words[2])
                .args(&words[3..])
                .exec();
            panic!("{error}");
        }
        other => panic!("unknown way {other:?}"),
    }
}
