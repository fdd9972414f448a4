// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `faulter known PAGES | storm ROUNDS | mixed ROUNDS | churn`: takes page faults in a known way
//! and says what getrusage counted.

use std::io::Write;
use std::ptr::null_mut;
use std::time::Duration;

use bursar_host::clock::thread_cpu_time;

const PAGE: usize = 4096;

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
    // SAFETY: a fresh mapping, touched inside, given back.
    unsafe {
        let base = libc::mmap(
            null_mut(),
            pages * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            file,
            0,
        );
        assert!(base != libc::MAP_FAILED);
        libc::madvise(base, pages * PAGE, libc::MADV_NOHUGEPAGE);
        for page in 0..pages {
            base.cast::<u8>()
                .add(page * PAGE + PAGE / 2)
                .write_volatile(1);
        }
        libc::munmap(base, pages * PAGE);
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
            // SAFETY: as above.
            assert!(file >= 0 && unsafe { libc::ftruncate(file, (PAGES * PAGE) as i64) } == 0);
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
                        block.add(page * PAGE).write_volatile(1);
                    }
                    libc::free(block.cast());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        other => panic!("unknown way {other:?}"),
    }
}
