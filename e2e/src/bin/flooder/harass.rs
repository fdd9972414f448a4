// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeping bursard from its work: every connection that one user may have, each asking without end.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use bursar_protocol::{Operation, Request, VERSION};

/// More than one user may have.
const CONNECTIONS: usize = 20;

/// Goes on until somebody ends it.
pub(crate) fn harass(socket: &str) {
    thread::scope(|threads| {
        for index in 0..CONNECTIONS {
            threads.spawn(move || {
                loop {
                    // Cut or turned away: again.
                    let _ = pester(socket, index);
                }
            });
        }
    });
}

fn pester(socket: &str, index: usize) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    let lines = match index % 5 {
        // Nothing but ends of lines, and no answer is read.
        0 => vec![b'\n'; 64 << 10],
        // Questions, and no answer is read.
        1 => questions()?,
        // Questions, and every answer is read.
        2 => {
            let mut answers = stream.try_clone()?;
            let reader = thread::spawn(move || {
                let mut piece = vec![0; 64 << 10];
                while answers.read(&mut piece).is_ok_and(|count| count > 0) {}
            });
            let questions = questions()?;
            while stream.write_all(&questions).is_ok() {}
            let _ = reader.join();
            return Ok(());
        }
        // Byte by byte, and never an end of a line.
        3 => vec![b' '],
        // Comes and goes.
        _ => {
            stream.write_all(&questions()?)?;
            return Ok(());
        }
    };
    loop {
        stream.write_all(&lines)?;
    }
}

/// As many as are written in one go.
fn questions() -> std::io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for ask in [
        Operation::Status { who: None },
        Operation::Events {
            since: None,
            follow: true,
        },
        Operation::Why {
            pid: None,
            who: None,
        },
        Operation::Beancounters { who: None },
    ] {
        serde_json::to_writer(
            &mut lines,
            &Request {
                version: VERSION,
                ask,
            },
        )?;
        lines.push(b'\n');
    }
    Ok(lines.repeat(16))
}
