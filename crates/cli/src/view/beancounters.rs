// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar beancounters`: bills for people, and as OpenVZ's /proc/user_beancounters had them.

use bursar_model::{Bean, Bill, Bytes, How, Resource, Unit};
use bursar_protocol::Beancounters;

use crate::style::{Style, Tone};
use crate::view::paragraph::paragraph;
use crate::view::table::{Align, Cell, Table};
use crate::view::words::{narrow_count, narrow_size};

/// A table for each bill.
pub(crate) fn table(found: &Beancounters, style: &Style) -> String {
    let mut text = String::new();
    if found.bills.is_empty() {
        text.push_str(&paragraph(
            "",
            "no ordinary user runs anything",
            style.width,
        ));
    }
    for bill in &found.bills {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&one(bill, style));
    }
    if let Some(all) = &found.utilisation {
        let percent = |permille: u64| format!("{}.{} %", permille / 10, permille % 10);
        let sums = format!(
            "all of them: {} of memory in use, {} of memory and swap in use, {} of memory and swap \
             allocated",
            percent(all.ram_permille),
            percent(all.memory_and_swap_permille),
            percent(all.allocated_permille),
        );
        text.push('\n');
        text.push_str(&paragraph("", &sums, style.width));
    }
    for remark in &found.remarks {
        text.push_str(&paragraph("note: ", &style.shown(remark), style.width));
    }
    text
}

fn one(bill: &Bill, style: &Style) -> String {
    let headers = [
        ("RESOURCE", Align::Left),
        ("HELD", Align::Right),
        ("MAX", Align::Right),
        ("BARRIER", Align::Right),
        ("LIMIT", Align::Right),
        ("FAILED", Align::Right),
        ("HOW", Align::Left),
    ];
    let mut table = Table::new(&headers);
    let mut notes = Vec::new();
    for (resource, bean) in &bill.resources {
        let amount = |number: Option<u64>| number.map_or("-".to_owned(), |it| said(bean.unit, it));
        let (how, reason) = match &bean.how {
            How::Unavailable(why) => ("not available".to_owned(), Some(why.as_str())),
            known => (known.to_string(), None),
        };
        table.push(vec![
            Cell::new(resource.name()),
            Cell::toned(amount(bean.held), tone(bean)),
            Cell::new(amount(bean.maxheld)),
            Cell::new(amount(bean.barrier)),
            Cell::new(amount(bean.limit)),
            Cell::toned(
                narrow_count(bean.failcnt),
                (bean.failcnt > 0).then_some(Tone::Warning),
            ),
            Cell::new(how),
        ]);
        for note in reason.into_iter().chain(bean.note.as_deref()) {
            notes.push(format!("{}: {}", resource.name(), style.shown(note)));
        }
    }
    let mut text = format!("{}\n", style.shown(&bill.account));
    text.push_str(&table.lines(2, style));
    for note in notes {
        text.push_str(&paragraph("note: ", &note, style.width));
    }
    text
}

/// Bytes and pages as sizes, pieces as they are.
fn said(unit: Unit, number: u64) -> String {
    match unit {
        Unit::Items => number.to_string(),
        Unit::Bytes => narrow_size(Bytes::new(number)),
        Unit::Pages => narrow_size(Bytes::new(number.saturating_mul(Unit::PAGE_BYTES))),
    }
}

fn tone(bean: &Bean) -> Option<Tone> {
    let (held, barrier) = (bean.held?, bean.barrier?);
    match held {
        _ if held >= barrier => Some(Tone::Bad),
        _ if held > barrier / 10 * 9 => Some(Tone::Warning),
        _ => None,
    }
}

/// What `cat /proc/user_beancounters` printed on 64-bit machines: the formats of OpenVZ's
/// kernel/bc/proc.c. What is not known is 0, as there.
pub(crate) fn ubc(bills: &[Bill]) -> String {
    const UNLIMITED: u64 = i64::MAX as u64;
    // Rows of resources that once were, in their places.
    const ORDER: [Option<Resource>; 24] = [
        Some(Resource::Kmemsize),
        Some(Resource::Lockedpages),
        Some(Resource::Privvmpages),
        Some(Resource::Shmpages),
        None,
        Some(Resource::Numproc),
        Some(Resource::Physpages),
        Some(Resource::Vmguarpages),
        Some(Resource::Oomguarpages),
        Some(Resource::Numtcpsock),
        Some(Resource::Numflock),
        Some(Resource::Numpty),
        Some(Resource::Numsiginfo),
        Some(Resource::Tcpsndbuf),
        Some(Resource::Tcprcvbuf),
        Some(Resource::Othersockbuf),
        Some(Resource::Dgramrcvbuf),
        Some(Resource::Numothersock),
        Some(Resource::Dcachesize),
        Some(Resource::Numfile),
        None,
        None,
        None,
        Some(Resource::Numiptent),
    ];
    let line = |uid: &str, resource: &str, columns: [String; 5]| {
        let [held, maxheld, barrier, limit, failcnt] = columns;
        format!(
            "{uid:>10}  {resource:<12} {held:>20} {maxheld:>20} {barrier:>20} {limit:>20} {failcnt:>20}\n"
        )
    };
    let headers = ["held", "maxheld", "barrier", "limit", "failcnt"].map(str::to_owned);
    let mut text = "Version: 2.5\n".to_owned();
    text.push_str(&line("uid", "resource", headers));
    for bill in bills {
        for (index, resource) in ORDER.iter().enumerate() {
            let uid = match index {
                0 => format!("{}:", bill.id),
                _ => String::new(),
            };
            let bean = resource.and_then(|resource| bill.resources.get(&resource));
            let numbers = match bean {
                None => [0; 5],
                Some(bean) => [
                    bean.held.unwrap_or(0),
                    bean.maxheld.unwrap_or(0),
                    bean.barrier.unwrap_or(UNLIMITED),
                    bean.limit.unwrap_or(UNLIMITED),
                    bean.failcnt,
                ],
            };
            let name = resource.map_or("dummy", Resource::name);
            text.push_str(&line(&uid, name, numbers.map(|number| number.to_string())));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::style;

    fn bill() -> Bill {
        let mut resources: std::collections::BTreeMap<Resource, Bean> = Resource::BEANCOUNTERS
            .into_iter()
            .enumerate()
            .map(|(index, resource)| {
                let mut bean = Bean::unavailable(resource, "");
                bean.held = Some(index as u64 * 1000);
                bean.maxheld = Some(index as u64 * 1500);
                bean.how = How::Sampled { every: None };
                (resource, bean)
            })
            .collect();
        let numproc = resources.get_mut(&Resource::Numproc).unwrap();
        numproc.held = Some(200);
        numproc.maxheld = Some(200);
        numproc.barrier = Some(200);
        numproc.limit = Some(220);
        numproc.failcnt = 123_456;
        numproc.how = How::Exact;
        let names = resources.get_mut(&Resource::Dcachesize).unwrap();
        names.barrier = Some(1 << 20);
        names.note = Some("account-only, nothing is refused: no hook".to_owned());
        let unknown = Bean::unavailable(Resource::Numiptent, "rules belong to nobody");
        resources.insert(Resource::Numiptent, unknown);
        Bill {
            account: "alice".to_owned(),
            uid: Some(bursar_model::Uid::new(1001)),
            id: 1001,
            resources,
        }
    }

    #[test]
    fn a_bill_has_all_rows_and_says_how_they_are_known() {
        let found = Beancounters {
            bills: vec![bill()],
            remarks: vec!["limits on dcachesize: nothing is refused".to_owned()],
            ..Beancounters::default()
        };
        assert_snapshot!(table(&found, &style(100)));
    }

    #[test]
    fn openvz_finds_the_table_it_knew() {
        assert_snapshot!(ubc(&[bill()]));
    }
}
