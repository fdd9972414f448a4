// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One request of HTTP, answered: what a socket unit with `Accept=yes` starts a program for. No header of the
//! request matters, and no connection is kept.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

/// More than any scraper sends.
const REQUEST_BYTES: usize = 8 << 10;
/// For the whole request, which is there already when a scraper's connection starts us: who connects and says nothing
/// has one of the socket unit's MaxConnections= for so long.
const TIMEOUT: Duration = Duration::from_millis(500);

/// What the answer begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    ServiceUnavailable,
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::ServiceUnavailable => "503 Service Unavailable",
        }
    }
}

/// What a request asks for: `Ok` if for the metrics.
fn judge(request: &[u8]) -> Status {
    let line = request.split(|&byte| byte == b'\r' || byte == b'\n').next();
    let line = line.and_then(|it| std::str::from_utf8(it).ok());
    let words: Vec<&str> = line.unwrap_or("").split(' ').collect();
    let &[method, target, version] = words.as_slice() else {
        return Status::BadRequest;
    };
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    match (version, method, path) {
        ("HTTP/1.0" | "HTTP/1.1", "GET", "/metrics") => Status::Ok,
        ("HTTP/1.0" | "HTTP/1.1", "GET", _) => Status::NotFound,
        ("HTTP/1.0" | "HTTP/1.1", _, _) => Status::MethodNotAllowed,
        _ => Status::BadRequest,
    }
}

/// Reads to the end of the headers.
pub(super) fn read_request(from: &mut (impl Read + AsFd)) -> io::Result<Status> {
    let began = Instant::now();
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let left = TIMEOUT.saturating_sub(began.elapsed());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let count = from.read(&mut piece)?;
        request.extend_from_slice(&piece[..count]);
        let is_whole = request.windows(4).any(|it| it == b"\r\n\r\n");
        if is_whole || request.windows(2).any(|it| it == b"\n\n") {
            return Ok(judge(&request));
        }
        if count == 0 || request.len() > REQUEST_BYTES {
            return Ok(Status::BadRequest);
        }
    }
}

/// The answer, in Prometheus's text format where it is one.
pub(super) fn write_answer(to: &mut impl Write, status: Status, text: &str) -> io::Result<()> {
    let kind = if status == Status::Ok {
        "text/plain; version=0.0.4; charset=utf-8"
    } else {
        "text/plain; charset=utf-8"
    };
    let allow = if status == Status::MethodNotAllowed {
        "Allow: GET\r\n"
    } else {
        ""
    };
    write!(
        to,
        "HTTP/1.1 {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n{text}",
        status.line(),
        text.len()
    )?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_request_is_for_the_metrics_or_for_nothing() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Status::Ok),
            ("GET /metrics?a=b HTTP/1.0\r\n\r\n", Status::Ok),
            ("GET / HTTP/1.1\r\n\r\n", Status::NotFound),
            ("GET /metrics/../x HTTP/1.1\r\n\r\n", Status::NotFound),
            ("POST /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET /metrics\r\n\r\n", Status::BadRequest),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("GET /metrics HTTP/2\r\n\r\n", Status::BadRequest),
            ("\r\n\r\n", Status::BadRequest),
        ] {
            assert_eq!(judge(request.as_bytes()), expected, "{request:?}");
        }
        assert_eq!(judge(&[0xff, 0xfe, b'\n', b'\n']), Status::BadRequest);
    }

    #[test]
    fn a_request_comes_in_pieces() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            for piece in ["GET /met", "rics HTTP/1.1\r\nA: b\r\n", "\r\n"] {
                theirs.write_all(piece.as_bytes()).unwrap();
            }
            theirs
        });
        assert_eq!(read_request(&mut ours).unwrap(), Status::Ok);
        drop(writer.join().unwrap());
    }

    #[test]
    fn who_says_nothing_is_left_in_less_than_a_second() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"GET /metrics").unwrap();
        let began = Instant::now();
        let error = read_request(&mut ours).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // This machine may be busy; it was 5 s.
        assert!(began.elapsed() < Duration::from_secs(4));
    }

    #[test]
    fn a_request_has_an_end() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[b'x'; REQUEST_BYTES + 1024]).unwrap();
        assert_eq!(read_request(&mut ours).unwrap(), Status::BadRequest);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert_eq!(read_request(&mut ours).unwrap(), Status::BadRequest);
    }

    #[test]
    fn an_answer_says_how_long_it_is() {
        let mut answer = Vec::new();
        write_answer(&mut answer, Status::Ok, "a 1\n").unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("Content-Length: 4"), "{head}");
        assert_eq!(body, "a 1\n");
    }
}
