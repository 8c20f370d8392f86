//! Statements that set up a server on this machine: no password, no TLS, no parameters.

use std::net::SocketAddr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgRow, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, ValueRef as _};

use crate::error::{Error, Result};

/// A statement that takes longer hangs. Those that write ten thousands of rows take half a minute on a busy machine.
const LIMIT: Duration = Duration::from_mins(3);

/// Rows as text, in the order in which they came.
pub(super) type Rows = Vec<Vec<Option<String>>>;

/// Runs statements, separated by semicolons, as this user in this database.
pub(super) async fn execute(to: SocketAddr, user: &str, database: &str, sql: &str) -> Result<Rows> {
    let what = || format!("{sql} in {database} of PostgreSQL at {to}");
    match tokio::time::timeout(LIMIT, exchange(to, user, database, sql)).await {
        Ok(answer) => answer.map_err(|error| Error::new(format!("{}: {error}", what()))),
        Err(_) => Err(Error::new(format!("{}: no answer within {LIMIT:?}", what()))),
    }
}

async fn exchange(to: SocketAddr, user: &str, database: &str, sql: &str) -> sqlx::Result<Rows> {
    let options = PgConnectOptions::new_without_pgpass().host(&to.ip().to_string()).port(to.port());
    let options = options.username(user).database(database).ssl_mode(PgSslMode::Disable).disable_statement_logging();
    let mut connection = options.connect().await?;
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
    connection.close().await?;
    rows.iter().map(texts).collect()
}

/// What comes back for statements without parameters is text.
fn texts(row: &PgRow) -> sqlx::Result<Vec<Option<String>>> {
    let text = |column| {
        let value = row.try_get_raw(column)?;
        if value.is_null() { Ok(None) } else { value.as_str().map(|text| Some(text.to_owned())).map_err(sqlx::Error::Decode) }
    };
    (0..row.len()).map(text).collect()
}
