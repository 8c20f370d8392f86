//! The rows of several statements that were sent together.

use sqlx::postgres::PgRow;

/// The rows of each statement, in the order of the statements.
#[derive(Default)]
pub(crate) struct Answers(Vec<Vec<PgRow>>);

impl Answers {
    pub(crate) fn push(&mut self, rows: Vec<PgRow>) {
        self.0.push(rows);
    }

    /// The rows of the last statement.
    pub(crate) fn last(&self) -> &[PgRow] {
        self.before_last(0)
    }

    /// The rows of the statement that stands so many before the last one.
    pub(crate) fn before_last(&self, before: usize) -> &[PgRow] {
        let index = self.0.len().checked_sub(before + 1);
        index.and_then(|index| self.0.get(index)).map_or(&[], Vec::as_slice)
    }
}
