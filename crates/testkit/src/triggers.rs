//! `EXPLAIN QUERY PLAN` does not show what the triggers of a statement do. Taken apart, their statements can be asked for one by one.

/// The statements of one SQLite trigger, as `sqlite_schema.sql` has it: its condition as a `SELECT`,
/// then those of its body, with a parameter for each `NEW.x` and `OLD.x`. Those that only refuse
/// (`RAISE`) read nothing and are left out. No string in the trigger may contain a semicolon.
#[must_use]
pub fn trigger_statements(create: &str) -> Vec<String> {
    let text: String = create.lines().map(|line| line.split("--").next().unwrap_or_default().trim()).collect::<Vec<_>>().join(" ");
    let (Some(begin), Some(end)) = (text.find(" BEGIN "), text.rfind("END")) else { return Vec::new() };
    let condition = text[..begin].split_once(" WHEN ").map(|(_, condition)| format!("SELECT {condition}"));
    let body = text[begin + " BEGIN ".len()..end].split(';').map(str::trim);
    let reads = |statement: &str| !statement.is_empty() && !statement.to_ascii_uppercase().starts_with("SELECT RAISE");
    condition.into_iter().chain(body.filter(|statement| reads(statement)).map(str::to_owned)).map(|one| with_parameters(&one)).collect()
}

/// With a parameter in the place of each column of the row that fires the trigger.
fn with_parameters(statement: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut text, mut rest) = (String::new(), statement);
    while let Some(at) = rest.find("NEW.").into_iter().chain(rest.find("OLD.")).min() {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        let column = &from["NEW.".len()..];
        text.push('?');
        rest = column.trim_start_matches(is_word);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_and_each_statement_that_reads() {
        let create = "CREATE TRIGGER begins AFTER INSERT ON claim WHEN NEW.number > (SELECT counter FROM store) BEGIN
            -- Why.
            UPDATE store SET counter = NEW.number; -- so
            SELECT raise(ABORT, 'no');
            DELETE FROM claim WHERE x = CASE OLD.a WHEN 1 THEN 2 END AND y = OLD.b_c;
        END";
        let statements = trigger_statements(create);
        let wanted = [
            "SELECT ? > (SELECT counter FROM store)",
            "UPDATE store SET counter = ?",
            "DELETE FROM claim WHERE x = CASE ? WHEN 1 THEN 2 END AND y = ?",
        ];
        assert_eq!(statements, wanted);
    }
}
