// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What people do with programs that are no part of bursar: a build, a search through directories, transactions. Each
//! lays out its files first, below a directory of its own, which is gone at the end.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, exit};

use super::{say, scratch};

/// What can be done, and the programs that it takes.
pub(crate) const WORKS: [(&str, &[&str]); 3] = [
    ("build", &["make", "gcc", "as", "ld"]),
    ("find", &["find"]),
    ("journal", &["sqlite3"]),
];

/// C files of the build.
const SOURCES: usize = 30;
/// Headers that each of them includes.
const HEADERS: usize = 100;
const FUNCTIONS: usize = 2;
/// Of Debian's /usr one entry in nine is a directory.
const DIRECTORIES: usize = 2222;
const FILES_OF_EACH: usize = 8;
const TRANSACTIONS: usize = 200;

/// As the kernel's: a shell for each file, dependencies beside the object, one object of all at the end.
const MAKEFILE: &str = "\
objects := $(patsubst %.c,%.o,$(wildcard *.c))
built-in.o: $(objects)
\t@echo '  LD      $@'; ld -r -o $@ $^
%.o: %.c
\t@echo '  CC      $@'; gcc -nostdinc -Iinclude -O2 -Wp,-MMD,$*.d -c -o $@ $<
";

/// One of [`WORKS`], ready to be done.
pub(crate) struct Work {
    name: &'static str,
    directory: PathBuf,
}

impl Work {
    /// None where its programs are not there.
    pub(crate) fn prepare(name: &'static str, programs: &[&str]) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there =
            |program: &&str| std::env::split_paths(&path).any(|it| it.join(program).exists());
        if !programs.iter().all(is_there) {
            return None;
        }
        let work = Self {
            name,
            directory: PathBuf::from(scratch(1)).with_extension(name),
        };
        let laid_out = fs::create_dir(&work.directory).and_then(|()| match name {
            "build" => lay_out_sources(&work.directory),
            "find" => lay_out_tree(&work.directory),
            _ => lay_out_transactions(&work.directory),
        });
        if let Err(error) = laid_out {
            fail(name, &error.to_string());
        }
        Some(work)
    }

    /// One build, one search, 200 transactions.
    pub(crate) fn once(&self) {
        let mut command = match self.name {
            "build" => {
                let mut make = Command::new("make");
                make.args(["-s", "-B", "-j2"]);
                make
            }
            "find" => Command::new("find"),
            _ => {
                let _ = fs::remove_file(self.directory.join("database"));
                let mut sqlite = Command::new("sqlite3");
                sqlite.args(["-batch", "-init", "/dev/null", "database"]);
                sqlite
            }
        };
        let input = match self.name {
            "journal" => File::open(self.directory.join("script")).map(Stdio::from),
            _ => Ok(Stdio::null()),
        };
        let done = input.and_then(|input| {
            command
                .current_dir(&self.directory)
                .env("TMPDIR", &self.directory)
                .stdin(input)
                .stdout(Stdio::null())
                .status()
        });
        // What was refused something is done sooner.
        match done {
            Ok(status) if status.success() => {}
            Ok(status) => fail(self.name, &status.to_string()),
            Err(error) => fail(self.name, &error.to_string()),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn fail(name: &str, why: &str) -> ! {
    say(&format!("{name}: {why}"));
    exit(3)
}

fn lay_out_sources(directory: &Path) -> std::io::Result<()> {
    fs::write(directory.join("Makefile"), MAKEFILE)?;
    let include = directory.join("include");
    fs::create_dir(&include)?;
    let mut includes = String::new();
    for number in 0..HEADERS {
        let _ = writeln!(includes, "#include <part{number}.h>");
        fs::write(include.join(format!("part{number}.h")), header(number))?;
    }
    for number in 0..SOURCES {
        let text = includes.clone() + &source(number);
        fs::write(directory.join(format!("file{number}.c")), text)?;
    }
    Ok(())
}

fn header(number: usize) -> String {
    let before = number / 2;
    let (include, of) = match number {
        0 => (String::new(), "void".to_owned()),
        _ => (
            format!("#include <part{before}.h>\n"),
            format!("struct part{before}"),
        ),
    };
    format!(
        "#ifndef PART{number}_H\n#define PART{number}_H\n{include}\
         #define PART{number}_MOST {number}\n\
         #define part{number}_most(x) ((x) > PART{number}_MOST ? (x) : PART{number}_MOST)\n\
         enum part{number}_state {{ PART{number}_NEW, PART{number}_READY, PART{number}_GONE }};\n\
         struct part{number} {{\n\tint users;\n\tlong bytes;\n\t{of} *of;\n\tenum part{number}_state state;\n\
         \tchar name[16];\n}};\n\
         static inline long part{number}_look(struct part{number} *it, long by)\n{{\n\tit->users += by;\n\
         \tif (it->state == PART{number}_GONE)\n\t\treturn -by;\n\
         \treturn it->of ? it->bytes * by + it->name[by & 15] : by;\n}}\n\
         extern int part{number}_begin(struct part{number} *it, int flags);\n#endif\n"
    )
}

fn source(number: usize) -> String {
    let function = |index: usize| {
        let (a, b) = (
            (number * 7 + index * 3) % HEADERS,
            (number * 5 + index * 11 + 1) % HEADERS,
        );
        format!(
            "int work{number}_{index}(struct part{a} *one, struct part{b} *other, int times)\n{{\n\tlong sum = 0;\n\
             \tfor (int i = 0; i < times; i++) {{\n\t\tsum += part{a}_look(one, i) ^ part{b}_look(other, sum);\n\
             \t\tif (sum > part{a}_most(i))\n\t\t\tone->bytes -= sum;\n\t\tswitch (sum & 7) {{\n\
             \t\tcase 1:\n\t\t\tother->state = PART{b}_READY;\n\t\t\tbreak;\n\t\tcase 2:\n\t\t\tone->users++;\n\
             \t\t\tbreak;\n\t\tcase 5:\n\t\t\tsum += part{b}_begin(other, i);\n\t\t}}\n\t}}\n\treturn sum;\n}}\n"
        )
    };
    (0..FUNCTIONS).map(function).collect()
}

fn lay_out_tree(directory: &Path) -> std::io::Result<()> {
    let mut paths = vec![directory.to_owned()];
    for number in 0..DIRECTORIES {
        let path = paths[number / FILES_OF_EACH].join(format!("directory{number}"));
        fs::create_dir(&path)?;
        for file in 0..FILES_OF_EACH {
            File::create(path.join(format!("file{file}")))?;
        }
        paths.push(path);
    }
    Ok(())
}

/// Each statement is a transaction: a journal is made, written, synchronised and deleted, and the database locked.
fn lay_out_transactions(directory: &Path) -> std::io::Result<()> {
    let mut script =
        "PRAGMA journal_mode=DELETE;\nCREATE TABLE what(number INTEGER PRIMARY KEY, text TEXT);\n"
            .to_owned();
    for number in 0..TRANSACTIONS {
        let _ = writeln!(
            script,
            "INSERT INTO what VALUES({number}, 'the text of line {number}');"
        );
    }
    fs::write(directory.join("script"), script)
}
