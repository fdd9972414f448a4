// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real HTTP server that keeps what it gets, and can be away for a while.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

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

/// How it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Mood {
    #[default]
    Well,
    /// It answers with an error, or hangs up.
    Troubled,
    /// It takes connections and says nothing.
    Silent,
    /// Nobody listens.
    Gone,
}

/// The server.
pub(super) struct Sink {
    pub(super) port: u16,
    posted: Arc<Mutex<Vec<Posted>>>,
    mood: Arc<Mutex<Mood>>,
}

impl Sink {
    pub(super) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let sink = Self {
            port: listener.local_addr()?.port(),
            posted: Arc::default(),
            mood: Arc::default(),
        };
        let (posted, mood, port) = (Arc::clone(&sink.posted), Arc::clone(&sink.mood), sink.port);
        thread::spawn(move || serve(listener, port, &posted, &mood));
        Ok(sink)
    }

    pub(super) fn set(&self, mood: Mood) {
        let before = std::mem::replace(&mut *locked(&self.mood), mood);
        if before != mood && mood == Mood::Gone {
            // It listens until somebody comes.
            let _ = TcpStream::connect(("127.0.0.1", self.port));
        }
    }

    pub(super) fn posted(&self) -> Vec<Posted> {
        locked(&self.posted).clone()
    }
}

fn locked<T>(it: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(mut listener: TcpListener, port: u16, posted: &Mutex<Vec<Posted>>, mood: &Mutex<Mood>) {
    let mut silent = Vec::new();
    for count in 0_u64.. {
        let Ok((stream, _)) = listener.accept() else {
            continue;
        };
        let now = *locked(mood);
        match now {
            Mood::Well => {
                if let Ok(one) = receive(&stream) {
                    // Kept before it is answered: whoever is killed in between sends it again.
                    locked(posted).push(one);
                    answer(&stream, "204 No Content");
                }
            }
            Mood::Troubled => {
                if count % 2 == 0 && receive(&stream).is_ok() {
                    answer(&stream, "503 Service Unavailable");
                }
            }
            Mood::Silent => silent.push(stream),
            Mood::Gone => {
                drop(listener);
                silent.clear();
                listener = loop {
                    thread::sleep(Duration::from_millis(50));
                    if *locked(mood) != Mood::Gone
                        && let Ok(again) = TcpListener::bind(("127.0.0.1", port))
                    {
                        break again;
                    }
                };
            }
        }
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
