// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One page that holds everything, without anything from elsewhere.

use crate::results::Results;
use crate::show;

use super::picture::{Picture, escaped};

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#000;\
background:#fff}table{border-collapse:collapse;margin:1em 0;font-size:13px}th,td{border:1px solid #999;\
padding:.25em .6em;vertical-align:top}th{background:#eee}td.number{text-align:right;white-space:nowrap}\
figure{margin:1.5em 0;overflow-x:auto}h2{margin-top:2em;border-bottom:1px solid #000}";

pub(crate) fn page(results: &Results, pictures: &[Picture]) -> String {
    let mut body = String::from("<h1>bursar-bench</h1>\n");
    let pace = if results.is_quick {
        "a quick run: a first impression, with wide intervals"
    } else {
        "a whole run"
    };
    body += &format!(
        "<p>{pace}, {:.0} minutes, {}</p>\n",
        results.seconds / 60.0,
        escaped(&results.machine.began)
    );
    body += &show::machine(&results.machine).html();
    body += "<h2>What bursar promises, and what this run found</h2>\n";
    body += &show::claims(results).html();
    for section in show::sections(results) {
        body += &format!(
            "<h2>{}</h2>\n<p>{}</p>\n",
            escaped(section.title),
            escaped(section.about)
        );
        for picture in pictures
            .iter()
            .filter(|it| section.pictures.contains(&it.name))
        {
            // The same names of patterns in each: harmless, they are the same patterns.
            let title = escaped(&picture.title);
            body += &format!(
                "<figure>{}<figcaption>{title}: <a href=\"{}.png\">PNG</a></figcaption></figure>\n",
                picture.svg, picture.name
            );
        }
        for grid in &section.grids {
            body += &grid.html();
        }
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>bursar-bench</title>\
         <style>{STYLE}</style></head><body>\n{body}</body></html>\n"
    )
}
