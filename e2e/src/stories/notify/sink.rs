// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real HTTP server that keeps what it gets, and can be down for a while.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

/// One POST.
#[derive(Debug, Clone)]
pub(super) struct Posted {
    /// With their names in small letters.
    pub(super) headers: Vec<(String, String)>,
    pub(super) path: String,
    pub(super) body: Vec<u8>,
}

impl Posted {
    pub(super) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(it, _)| it == name);
        found.map_or("", |(_, value)| value)
    }

    /// The numbers of the events in it.
    pub(super) fn numbers(&self) -> Result<Vec<u64>> {
        let read: serde_json::Value = serde_json::from_slice(&self.body)?;
        let events = read["events"].as_array().context("events")?;
        let numbers = events
            .iter()
            .map(|it| it["number"].as_u64().context("a number"));
        numbers.collect()
    }
}

/// The server.
pub(super) struct Sink {
    pub(super) port: u16,
    posted: Arc<Mutex<Vec<Posted>>>,
    is_down: Arc<AtomicBool>,
}

impl Sink {
    pub(super) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let sink = Self {
            port: listener.local_addr()?.port(),
            posted: Arc::default(),
            is_down: Arc::default(),
        };
        let (posted, is_down) = (Arc::clone(&sink.posted), Arc::clone(&sink.is_down));
        thread::spawn(move || {
            for (count, stream) in listener.incoming().flatten().enumerate() {
                if !is_down.load(Ordering::Relaxed) {
                    if let Ok(one) = receive(&stream) {
                        // Kept before it is answered: whoever is killed in between sends it again.
                        posted
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(one);
                        answer(&stream, "204 No Content");
                    }
                } else if count % 2 == 0 && receive(&stream).is_ok() {
                    answer(&stream, "503 Service Unavailable");
                }
            }
        });
        Ok(sink)
    }

    pub(super) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    pub(super) fn posted(&self) -> Vec<Posted> {
        let posted = self.posted.lock();
        posted.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn answer(mut stream: &TcpStream, status: &str) {
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
}

fn receive(stream: &TcpStream) -> Result<Posted> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).context("a path")?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut posted = Posted {
        headers,
        path,
        body: Vec::new(),
    };
    let length: usize = posted.header("content-length").parse()?;
    posted.body.resize(length, 0);
    reader.read_exact(&mut posted.body)?;
    Ok(posted)
}
