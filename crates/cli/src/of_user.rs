// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--user NAME`: WHO, for whoever types it as an option. The same in every command that is about an account.

use bursar_model::Who;
use clap::Args;

/// Beside an argument `who`.
#[derive(Debug, Args)]
pub(crate) struct OfUser {
    /// WHO is this user (a name or a uid)
    #[arg(long, value_name = "NAME", conflicts_with = "who", value_parser = user)]
    user: Option<Who>,
}

impl OfUser {
    /// Whichever was typed.
    pub(crate) fn or(&self, who: Option<&Who>) -> Option<Who> {
        self.user.as_ref().or(who).cloned()
    }
}

fn user(text: &str) -> Result<Who, String> {
    match text.parse() {
        Ok(who @ (Who::User(_) | Who::Uid(_))) => Ok(who),
        Ok(Who::Shared(_) | Who::Group(_) | Who::Default) => {
            Err("give a user name or a uid".into())
        }
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_named_or_numbered() {
        assert!(user("60001").is_ok() && user("alice").is_ok());
        for text in ["=lab", "@staff", "default", "a/b"] {
            assert!(user(text).is_err(), "{text}");
        }
    }
}
