//! Executes each command.

use std::fmt::Write as _;
use std::time::Duration;

use crate::heap::Full;
use crate::resp::Replies;
use crate::store::Server;
use crate::table::Table;

/// The work left after a command was executed, done without the lock of the table.
pub(crate) enum Then {
    Nothing,
    /// Take a checkpoint, and reply when it is done.
    Save,
    /// Reply when this number of writes is durable, or after this time.
    WaitDurable(u64, Duration),
    Close,
    /// End the process, with a last checkpoint or without.
    Shutdown(bool),
}

const FULL: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";
/// Practically for ever.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);
const NAMES: &str = " ping echo set get mget del exists incr mset dbsize flushall flushdb info config \
                     command select save bgsave lastsave waitaof quit shutdown ";

/// Executes one command, completely or not at all.
pub(crate) fn execute(
    words: &[&[u8]],
    server: &Server,
    table: &mut Table,
    replies: &mut Replies,
) -> Then {
    let [name, arguments @ ..] = words else { return Then::Nothing };
    let name = name.to_ascii_lowercase();
    match (name.as_slice(), arguments) {
        (b"ping", []) => replies.status("PONG"),
        (b"ping" | b"echo", [text]) => replies.string(text),
        (b"get", [key]) => get(table, key, replies),
        (b"mget", [_, ..]) => {
            replies.array(arguments.len());
            arguments.iter().for_each(|key| get(table, key, replies));
        }
        (b"exists", [_, ..]) => {
            replies.integer(arguments.iter().filter(|key| table.get(key).is_some()).count());
        }
        (b"set", [key, value]) => changed(table.set(key, value), table, replies),
        (b"set", [_, _, ..]) => replies.error("ERR syntax error"),
        (b"mset", [_, _, ..]) if arguments.len().is_multiple_of(2) => {
            changed(set_all(table, arguments), table, replies);
        }
        (b"incr", [key]) => increment(table, key, replies),
        (b"del", [_, ..]) => {
            let removed = arguments.iter().filter(|key| table.remove(key)).count();
            (removed > 0).then(|| table.count_write());
            replies.integer(removed);
        }
        (b"dbsize", []) => replies.integer(table.keys()),
        (b"flushall" | b"flushdb", [] | [_]) => {
            table.count_write();
            if let Err(error) = table.clear() {
                eprintln!("the memory of the flushed keys is kept: {error}");
            }
            replies.status("OK");
        }
        (b"info", _) => replies.string(info(server, table).as_bytes()),
        (b"config", [word, names @ ..]) if word.eq_ignore_ascii_case(b"get") => {
            config(server, table, names, replies);
        }
        (b"command", _) => replies.array(0),
        (b"select", [b"0"]) => replies.status("OK"),
        (b"select", [_]) => replies.error("ERR DB index is out of range"),
        (b"save", []) => return Then::Save,
        (b"bgsave", [] | [_]) => {
            server.checkpoints.ask();
            replies.status("Background saving started");
        }
        (b"lastsave", []) => replies.integer(server.checkpoints.state().durable_unix_s),
        (b"waitaof", [_, _, patience]) => match number(patience) {
            Some(0) => return Then::WaitDurable(table.writes(), FOR_EVER),
            Some(ms @ 1..) => {
                return Then::WaitDurable(table.writes(), Duration::from_millis(ms as u64));
            }
            _ => replies.error("ERR timeout is not an integer or out of range"),
        },
        (b"quit", []) => {
            replies.status("OK");
            return Then::Close;
        }
        (b"shutdown", []) => return Then::Shutdown(true),
        (b"shutdown", [how]) if how.eq_ignore_ascii_case(b"save") => return Then::Shutdown(true),
        (b"shutdown", [how]) if how.eq_ignore_ascii_case(b"nosave") => {
            return Then::Shutdown(false);
        }
        _ => {
            let name = String::from_utf8_lossy(&name).replace(char::is_control, " ");
            let is_known = NAMES.contains(&format!(" {name} "));
            replies.error(&match is_known {
                true => format!("ERR wrong number or kind of arguments for '{name}' command"),
                false => format!("ERR unknown command '{}'", name.get(..128).unwrap_or(&name)),
            });
        }
    }
    Then::Nothing
}

fn get(table: &Table, key: &[u8], replies: &mut Replies) {
    match table.get(key) {
        Some(value) => replies.string(value),
        None => replies.nil(),
    }
}

fn changed(done: Result<(), Full>, table: &mut Table, replies: &mut Replies) {
    match done {
        Ok(()) => {
            table.count_write();
            replies.status("OK");
        }
        Err(Full) => replies.error(FULL),
    }
}

/// Sets all of the pairs, or none of them if there is no room for all.
fn set_all(table: &mut Table, pairs: &[&[u8]]) -> Result<(), Full> {
    let mut prepared = Vec::with_capacity(pairs.len() / 2);
    for pair in pairs.chunks_exact(2) {
        match table.prepare(pair[0], pair[1]) {
            Ok(entry) => prepared.push(entry),
            Err(Full) => {
                prepared.into_iter().for_each(|entry| table.give_up(entry));
                return Err(Full);
            }
        }
    }
    prepared.into_iter().for_each(|entry| table.insert(entry));
    Ok(())
}

fn increment(table: &mut Table, key: &[u8], replies: &mut Replies) {
    let before = table.get(key).map_or(Some(0), number);
    match before.and_then(|before| before.checked_add(1)) {
        Some(value) => match table.set(key, value.to_string().as_bytes()) {
            Ok(()) => {
                table.count_write();
                replies.integer(value);
            }
            Err(Full) => replies.error(FULL),
        },
        None => replies.error(NOT_A_NUMBER),
    }
}

fn number(bytes: &[u8]) -> Option<i64> {
    str::from_utf8(bytes).ok()?.parse().ok()
}

/// The settings that redis-benchmark asks for.
fn config(server: &Server, table: &Table, names: &[&[u8]], replies: &mut Replies) {
    let every = server.every.as_secs();
    let settings = [
        ("save", if every == 0 { String::new() } else { format!("{every} 1") }),
        ("appendonly", "no".to_owned()),
        ("maxmemory", table.memory().capacity().0.to_string()),
    ];
    let is_wanted = |(name, _): &&(&str, String)| {
        names.iter().any(|glob| *glob == b"*" || glob.eq_ignore_ascii_case(name.as_bytes()))
    };
    let wanted: Vec<_> = settings.iter().filter(is_wanted).collect();
    replies.array(2 * wanted.len());
    for (name, value) in wanted {
        replies.string(name.as_bytes());
        replies.string(value.as_bytes());
    }
}

fn info(server: &Server, table: &Table) -> String {
    let state = server.checkpoints.state().clone();
    let durable = state.durable.unwrap_or_default();
    let restored = server.restored.unwrap_or_default();
    let status = if state.fault.is_some() { "err" } else { "ok" };
    let mut text = String::new();
    let mut section = |name: &str, fields: &[(&str, u64)]| {
        let _ = write!(text, "# {name}\r\n");
        for (field, value) in fields {
            let _ = write!(text, "{field}:{value}\r\n");
        }
    };
    section(
        "Server",
        &[
            ("process_id", std::process::id().into()),
            ("uptime_in_seconds", server.started.elapsed().as_secs()),
        ],
    );
    section(
        "Memory",
        &[
            ("used_memory", table.used_bytes()),
            ("heap_bytes", table.memory().len()),
            ("maxmemory", table.memory().capacity().0),
        ],
    );
    section(
        "Persistence",
        &[
            ("rdb_bgsave_in_progress", state.is_saving.into()),
            ("rdb_last_save_time", state.durable_unix_s),
            ("writes", table.writes()),
            ("durable_generation", durable.generation),
            ("durable_writes", durable.writes),
            ("restored_generation", restored.generation),
            ("restored_writes", restored.writes),
        ],
    );
    let _ = write!(text, "rdb_last_bgsave_status:{status}\r\n# Keyspace\r\n");
    let _ = write!(text, "db0:keys={},expires=0,avg_ttl=0\r\n", table.keys());
    text
}
