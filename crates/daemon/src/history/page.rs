// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The next events after a number, for who reads on.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bursar_model::Event;
use bursar_protocol::EventPage;

use super::History;
use super::index::{Block, Which};

/// Events that are given in one piece to who reads on, bytes of JSON; one more at most.
const PAGE: usize = 256 << 10;

/// Events as they are collected, and what they take as JSON.
#[derive(Debug, Default)]
struct Found {
    events: Vec<(Event, usize)>,
    /// Of those with a greater number some may be missing.
    complete_to: Option<u64>,
}

impl Found {
    fn add(&mut self, event: Event, after: u64) {
        if event.number.is_some_and(|it| it > after) {
            let size = serde_json::to_vec(&event).map_or(0, |it| it.len());
            self.events.push((event, size));
        }
    }

    /// Whether those below a number are a page.
    fn fills_page_below(&self, number: u64) -> bool {
        let below = |event: &Event| event.number.is_some_and(|it| it < number);
        let its = self.events.iter().filter(|(event, _)| below(event));
        its.map(|(_, size)| *size).sum::<usize>() >= PAGE
    }
}

impl History {
    /// The next events after a number, in the order of their numbers, as many as fit a page.
    pub(crate) fn page_after(&self, after: u64) -> EventPage {
        let mut found = Found::default();
        match self.cache.has_all_after(after) {
            true => self
                .recent()
                .for_each(|event| found.add(event.clone(), after)),
            false => self.collect_stored(&mut found, after),
        }
        found.events.sort_by_key(|(event, _)| event.number);
        let all = found.events.len();
        let is_complete =
            |event: &Event| found.complete_to.is_none_or(|to| event.number < Some(to));
        let mut size = 0_usize;
        let is_within = |(event, its): &(Event, usize)| {
            let fits = size < PAGE && is_complete(event);
            size = size.saturating_add(*its);
            fits
        };
        let events: Vec<Event> = found
            .events
            .into_iter()
            .take_while(is_within)
            .map(|(event, _)| event)
            .collect();
        EventPage {
            newest: self.numbers.last(),
            is_last: events.len() == all && found.complete_to.is_none(),
            events,
        }
    }

    /// What the files have and what waits to be written, at least a page of it.
    fn collect_stored(&self, found: &mut Found, after: u64) {
        for event in self.rate_limit.waiting() {
            found.add(event.clone(), after);
        }
        for block in self.index.after(after) {
            if found.fills_page_below(block.least) {
                found.complete_to = Some(block.least);
                return;
            }
            let lines = self.read_block(&block).unwrap_or_default();
            for line in lines.split(|byte| *byte == b'\n') {
                if let Ok(event) = serde_json::from_slice::<Event>(line) {
                    found.add(event, after);
                }
            }
        }
    }

    fn read_block(&self, block: &Block) -> io::Result<Vec<u8>> {
        let path = match block.file {
            Which::Previous => &self.previous,
            Which::Current => &self.current,
        };
        #[cfg(test)]
        self.read.set(self.read.get() + block.end - block.start);
        let length = usize::try_from(block.end.saturating_sub(block.start)).unwrap_or(0);
        let mut bytes = vec![0; length];
        File::open(path)?.read_exact_at(&mut bytes, block.start)?;
        Ok(bytes)
    }
}
