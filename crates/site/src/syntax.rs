//! What is wrong with the syntax of a text: where an operator has to mend it, rather than where a parser stumbled.

use std::ops::Range;

use super::diagnostic::Problem;

/// So many are reported, the first of the text.
const MOST_ERRORS: usize = 100;

/// The problems behind `errors` of `text`. What follows a bracket that is never closed is read as its contents: none of
/// the errors there is one of its own.
pub(super) fn problems(text: &str, errors: &[toml::de::Error]) -> Vec<Problem> {
    let is_unclosed = |error: &toml::de::Error| {
        let message = error.message();
        message.starts_with("unclosed array,") || message.starts_with("unclosed inline table")
    };
    let open = if errors.iter().any(is_unclosed) { unclosed_bracket(text) } else { None };
    let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
    let mut errors: Vec<&toml::de::Error> = errors.iter().collect();
    errors.retain(|error| open.is_none_or(|open| start(error) < open));
    errors.sort_by_key(|error| start(error));
    errors.truncate(MOST_ERRORS);
    errors.into_iter().map(|error| problem(text, error)).chain(open.map(|at| not_closed(text, at))).collect()
}

fn not_closed(text: &str, at: usize) -> Problem {
    let (open, close, what) = if text[at..].starts_with('[') { ('[', ']', "list") } else { ('{', '}', "table") };
    Problem::error("", format!("not valid TOML: `{open}` is never closed"))
        .at(at..at + 1)
        .help(format!("add `{close}` where the {what} ends"))
}

fn problem(text: &str, error: &toml::de::Error) -> Problem {
    let message: Vec<&str> = error.message().lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let problem = Problem::error("", format!("not valid TOML: {}", message.join(", ")));
    match error.span() {
        Some(span) if message == ["duplicate key"] => repeated(text, span.clone(), problem).at(span),
        Some(span) => problem.at(span),
        None => problem,
    }
}

/// A key, or a table's header, that is there already: with the line of the first.
fn repeated(text: &str, key: Range<usize>, problem: Problem) -> Problem {
    let start = text[..key.start].rfind('\n').map_or(0, |newline| newline + 1);
    let before = text[..start].lines();
    let first = |index: usize| index + 1;
    let line = text[start..].lines().next().unwrap_or_default();
    let Some(name) = header(line) else {
        let key = &text[key];
        let is_same =
            |line: &str| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
        let table = before.clone().enumerate().filter(|(_, line)| header(line).is_some()).last();
        let mut keys = before.enumerate().skip(table.map_or(0, |(index, _)| index + 1));
        return match keys.find(|(_, line)| is_same(line)) {
            Some((index, _)) => problem.help(format!("the first is in line {}", first(index))),
            None => problem,
        };
    };
    let Some((index, other)) = before.enumerate().find(|(_, line)| header(line) == Some(name)) else {
        return problem;
    };
    let is_list = |line: &str| line.trim_start().starts_with("[[");
    let line_of_first = first(index);
    match (is_list(other), is_list(line)) {
        (true, false) => {
            Problem::error("", format!("not valid TOML: [{name}] after [[{name}]] in line {line_of_first}"))
                .help(format!("write [[{name}]] with two pairs of brackets"))
        }
        (false, true) => {
            Problem::error("", format!("not valid TOML: [[{name}]] after [{name}] in line {line_of_first}"))
                .help(format!("write [[{name}]] with two pairs of brackets in line {line_of_first}, too"))
        }
        _ => problem.help(format!("the first is in line {line_of_first}")),
    }
}

/// The name in a line that is the header of a table.
fn header(line: &str) -> Option<&str> {
    let inner = line.trim_start().strip_prefix('[')?;
    let inner = inner.strip_prefix('[').unwrap_or(inner);
    Some(inner.split_once(']')?.0.trim())
}

/// Where the first bracket is that is never closed.
fn unclosed_bracket(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut open, mut at) = (Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'#' => at = end_of_line(bytes, at),
            b'"' | b'\'' => at = end_of_string(bytes, at),
            b'[' | b'{' => open.push(at),
            b']' | b'}' => {
                // ASCII has two characters from each opening bracket to its closing one.
                if let Some(last) = open.pop()
                    && bytes[last] + 2 != *byte
                {
                    return Some(last);
                }
            }
            _ => {}
        }
        at += 1;
    }
    open.first().copied()
}

fn end_of_line(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| at + length)
}

/// The last byte of the string that begins at `at`; of one that does not end, that of its line.
fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let delimiter: &[u8] = if bytes[at..].starts_with(&[quote; 3]) { &[quote; 3] } else { &[quote] };
    let mut end = at + delimiter.len();
    while end < bytes.len() {
        match bytes[end] {
            b'\\' if quote == b'"' => end += 1,
            b'\n' if delimiter.len() == 1 => return end,
            _ if bytes[end..].starts_with(delimiter) => return end + delimiter.len() - 1,
            _ => {}
        }
        end += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::line_of;

    /// `line: message (help)` of everything that is wrong.
    fn messages(text: &str) -> Vec<String> {
        let (_, errors) = toml::de::DeTable::parse_recoverable(text);
        let line = |problem: &Problem| problem.span.as_ref().map_or(0, |span| line_of(text, span.start));
        problems(text, &errors).iter().map(|problem| format!("{}: {problem}", line(problem))).collect()
    }

    #[test]
    fn a_bracket_that_is_never_closed_is_the_one_mistake() {
        let rest = "[[device]]\nname = \"d\"\nvirtio-net = { network = \"n\" }\n".repeat(40);
        assert_eq!(
            messages(&format!("[[network]]\nname = \"n\" # [\ncidr = [\"10.0.0.0/8\", \"]\"\nmtu = 1500\n{rest}")),
            ["3: not valid TOML: `[` is never closed (add `]` where the list ends)"]
        );
        assert_eq!(
            messages(&format!("[[device]]\nname = '''\n[ ['''\nvirtio-net = {{ network = \"n\"\n{rest}")),
            ["4: not valid TOML: `{` is never closed (add `}` where the table ends)"]
        );
        assert_eq!(
            messages("[[device]]\nvirtio-net = { address = [\"10.0.0.2\" }\n"),
            ["2: not valid TOML: `[` is never closed (add `]` where the list ends)"]
        );
    }

    #[test]
    fn a_mistake_before_it_is_reported_too() {
        let found = messages("[node]\nfairness = fcfs\n[[network]]\ncidr = [\"10.0.0.0/8\"\nmtu = 1500\n");
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(found[0].starts_with("2: not valid TOML: "), "{found:#?}");
        assert_eq!(found[1], "4: not valid TOML: `[` is never closed (add `]` where the list ends)");
    }

    #[test]
    fn a_repetition_names_the_line_of_the_first() {
        assert_eq!(
            messages("[node]\nzone = \"a\"\n[other]\nzone = \"x\"\nzone = \"y\"\n"),
            ["5: not valid TOML: duplicate key (the first is in line 4)"]
        );
        assert_eq!(messages("[node]\n[node]\n"), ["2: not valid TOML: duplicate key (the first is in line 1)"]);
        assert_eq!(
            messages("[[volume]]\nname = \"a\"\n[volume]\nname = \"b\"\n"),
            ["3: not valid TOML: [volume] after [[volume]] in line 1 (write [[volume]] with two pairs of brackets)"]
        );
        assert_eq!(
            messages("[volume]\nname = \"a\"\n[[volume]]\nname = \"b\"\n"),
            ["3: not valid TOML: [[volume]] after [volume] in line 1 (write [[volume]] with two pairs of brackets in \
                 line 1, too)"]
        );
    }
}
