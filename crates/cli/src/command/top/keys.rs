// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys, as the terminal sends them.

use std::sync::mpsc::Sender;

use bursar_top::{Input, Key};
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read};

use super::{Word, start};

/// Sends keys and changes of size from now on.
pub(super) fn begin(sender: Sender<Word>) {
    let words = sender.clone();
    let work = move || {
        loop {
            let word = match read() {
                Ok(Event::Key(key)) => meant(key).map(|key| Word::Input(Input::Key(key))),
                Ok(Event::Resize(..)) => Some(Word::Resized),
                Ok(_) => None,
                // The terminal has gone.
                Err(_) => Some(Word::End),
            };
            let is_end = matches!(word, Some(Word::End));
            if word.is_some_and(|word| words.send(word).is_err()) || is_end {
                return;
            }
        }
    };
    if start("keys", work).is_err() {
        // A screen that hears no key cannot be left.
        let _ = sender.send(Word::End);
    }
}

fn meant(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    Some(match key.code {
        KeyCode::Char(letter) => Key::Character(letter),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
