//! CSV and other tables: a metric a column, a sample a row.
//!
//! ```text
//!  text ──tables──▶ heads, rows ──where──▶ rows ──columns──▶ metric    numbers in most rows
//!       , ; tab | blanks                                     key       few texts that come again: a metric for each
//!       sep=  #heads                                         fact      one text
//!                                                            left out  dates, row numbers, many texts: by name
//! ```
//! A cell that is no number, in a column of numbers, is an error: no column disappears because of one cell.

mod column;
pub(super) mod locust;
mod number;
mod table;

use std::collections::BTreeMap;

use super::collect::clipped;
use super::{Metric, Run, Where, unknown};
use crate::{Error, Result};
use column::{Column, shown};
use table::{Row, Table};

/// Fewer samples of a key's value on average are too few to tell it from others.
const LEAST_SAMPLES: usize = 4;

pub(super) fn parse(text: &str, name: &str, wanted: &[Where]) -> Result<Run> {
    let mut run = Run::new(name);
    let mut facts = BTreeMap::new();
    let tables = table::tables(text)?;
    let (rows, heads) = tables
        .iter()
        .fold((0, 0), |(rows, heads), table| (rows + table.rows.len(), heads + table.heads.len()));
    let mut tables = filtered(tables, wanted)?;
    for table in &mut tables {
        locust::refuse_list(&table.heads)?;
        if locust::is_table(&table.heads) {
            locust::without_empty_percentiles(table);
        }
        add(&mut run, &mut facts, table)?;
    }
    if run.metrics.is_empty() {
        let mut why = format!("{rows} rows under {heads} heads, and no column of numbers");
        if !run.left_out.is_empty() {
            why += &format!("; left out: {}", run.left_out.join(", "));
        }
        return Err(unknown(&why));
    }
    run.facts = facts.into();
    Ok(run)
}

/// The rows that are wanted.
fn filtered(mut tables: Vec<Table>, wanted: &[Where]) -> Result<Vec<Table>> {
    for Where { column, value } in wanted {
        let place = |table: &Table| table.heads.iter().position(|head| head == column);
        if !tables.iter().any(|table| place(table).is_some()) {
            let heads = tables.iter().flat_map(|table| &table.heads).map(String::as_str);
            let heads = shown(&heads.collect::<Vec<_>>().join(", "));
            return Err(Error::usage(format!("it has no column called `{column}`, but {heads}")));
        }
        for table in &mut tables {
            if let Some(place) = place(table) {
                table.rows.retain(|row| row.cells.get(place) == Some(value));
            }
        }
        tables.retain(|table| place(table).is_some() && !table.rows.is_empty());
        if tables.is_empty() {
            return Err(Error::usage(format!("it has no row with `{value}` in `{column}`")));
        }
    }
    Ok(tables)
}

fn add(run: &mut Run, facts: &mut BTreeMap<String, String>, table: &Table) -> Result<()> {
    let decimal = table::decimal(table)?;
    let heads = named(&table.heads)?;
    let is_of_locust = locust::is_table(&heads);
    let (mut columns, mut numbers) = (Vec::new(), BTreeMap::new());
    for (index, head) in heads.iter().enumerate() {
        let known = locust::column(head).filter(|_| is_of_locust);
        let judged = || Column::new(head, index, &table.rows, decimal);
        columns.push((head, index, known.map_or_else(judged, Ok)?));
    }
    let is_text = |column: &Column| *column == Column::Key;
    let texts: Vec<usize> =
        columns.iter().filter(|(.., column)| is_text(column)).map(|(_, index, _)| *index).collect();
    let cases = cases(&table.rows, &texts);
    for (.., column) in &mut columns {
        if let Column::Setting(values) = column {
            *column = match is_of_locust || is_told(&cases, values) {
                true => Column::Metric { unit: String::new(), values: std::mem::take(values) },
                false => Column::Key,
            };
        }
    }
    let keys = columns.iter().filter(|(_, _, column)| *column == Column::Key);
    let mut groups: Vec<String> = vec![String::new(); table.rows.len()];
    for (head, index, _) in keys {
        match split(&groups, &table.rows, head, *index, is_of_locust) {
            Some(finer) => groups = finer,
            None => {
                run.left_out.push(format!("column `{head}` (too many values for a metric each)"))
            }
        }
    }
    for (head, _, column) in columns {
        match column {
            Column::Key | Column::Setting(_) => {}
            Column::Fact(text) => drop(facts.insert(head.clone(), shown(&text))),
            Column::LeftOut(why) => run.left_out.push(format!("column `{head}` ({why})")),
            Column::Metric { unit, values } => {
                for _ in values.iter().filter(|value| value.is_none()) {
                    run.miss(head);
                }
                let mut samples: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
                for (group, value) in groups.iter().zip(&values) {
                    samples.entry(group).or_default().extend(value);
                }
                for (group, samples) in samples {
                    let name = free(run, &mut numbers, &metric(head, &unit, group));
                    let metric = Metric::levels(samples);
                    run.add(
                        &name,
                        metric.map(|one| if is_of_locust { one } else { one.untyped() }),
                    );
                }
            }
        }
    }
    Ok(())
}

/// The number of the texts of each row.
fn cases(rows: &[Row], texts: &[usize]) -> Vec<usize> {
    let mut known: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
    let mut numbers = Vec::new();
    for row in rows {
        let case = texts.iter().map(|at| row.cells.get(*at).unwrap_or_default()).collect();
        let next = known.len();
        numbers.push(*known.entry(case).or_insert(next));
    }
    numbers
}

/// Returns true if rows with the same texts have the same number, and there are enough of them: a result.
fn is_told(cases: &[usize], values: &[Option<f64>]) -> bool {
    let many = cases.iter().max().map_or(0, |last| last + 1);
    let mut first: Vec<Option<Option<f64>>> = vec![None; many];
    let mut is_first =
        |(case, value): (&usize, &Option<f64>)| *first[*case].get_or_insert(*value) == *value;
    many * LEAST_SAMPLES <= cases.len() && cases.iter().zip(values).all(&mut is_first)
}

/// The group of each row with another key; `None` if a group would have too few rows.
fn split(
    groups: &[String],
    rows: &[Row],
    head: &str,
    index: usize,
    is_of_locust: bool,
) -> Option<Vec<String>> {
    let head = clipped(head);
    let finer = groups.iter().zip(rows).map(|(group, row)| {
        // Whole: names that begin alike are of different things.
        let value = row.cells.get(index).unwrap_or_default();
        let comma = if group.is_empty() { "" } else { "," };
        format!("{group}{comma}{head}={value}")
    });
    let finer: Vec<String> = finer.collect();
    let many = |groups: &[String]| groups.iter().collect::<std::collections::BTreeSet<_>>().len();
    // The first key may have few samples; the comparison says so.
    let is_first = is_of_locust || groups.first().is_none_or(String::is_empty);
    (is_first || many(&finer) * LEAST_SAMPLES <= rows.len()).then_some(finer)
}

/// The name of a metric, in the form of Prometheus' labels: `ms{case=parse}`.
fn metric(head: &str, unit: &str, group: &str) -> String {
    let mut name = head.to_owned();
    if !unit.is_empty() && !head.to_lowercase().ends_with(&unit.to_lowercase()) {
        name += &format!("_{unit}");
    }
    if !group.is_empty() {
        name += &format!("{{{group}}}");
    }
    clipped(&name).to_owned()
}

/// The name, or the name with a number if another metric has it. `numbers` are the last ones of names.
fn free(run: &Run, numbers: &mut BTreeMap<String, usize>, name: &str) -> String {
    let mut free = name.to_owned();
    while run.metrics.contains_key(&free) {
        let number = numbers.entry(name.to_owned()).or_insert(1);
        *number += 1;
        free = format!("{name}#{number}");
    }
    free
}

/// The names of the columns: each has one of its own.
fn named(heads: &[String]) -> Result<Vec<String>> {
    let mut places = BTreeMap::new();
    let mut names = Vec::new();
    for (index, head) in heads.iter().enumerate() {
        let name = if head.is_empty() { format!("column_{}", index + 1) } else { head.clone() };
        if let Some(first) = places.insert(name.clone(), index) {
            let (first, second) = (first + 1, index + 1);
            return Err(Error::corrupt(format!(
                "as CSV: columns {first} and {second} are both called `{name}`; give one another name"
            )));
        }
        names.push(name);
    }
    Ok(names)
}
