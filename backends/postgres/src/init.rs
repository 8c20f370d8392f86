//! Making the tables.

use crate::client::Client;
use crate::error::{Failure, PgResult};
use crate::sql::schema::{self, MIGRATIONS, SCHEMA_VERSION, Survey};

/// Makes the schema and its tables, or those that are missing. Answers what was done.
pub(crate) async fn init(client: &Client) -> PgResult<String> {
    let (name, place) = (client.schema.name(), &client.context.place);
    let found = version(client).await?;
    if let Some(found) = found.filter(|found| *found > SCHEMA_VERSION) {
        return Err(Failure::OtherVersion { found, known: SCHEMA_VERSION });
    }
    if found == Some(SCHEMA_VERSION) {
        return Ok(format!("the tables in the schema {name} of {place} are up to date (version {SCHEMA_VERSION})"));
    }
    for migration in MIGRATIONS.iter().filter(|migration| found.is_none_or(|found| migration.version > found)) {
        let has_schema = survey(client).await?.has_schema;
        if let Err(failure) = client.run_unchecked(schema::migrate(&client.schema, has_schema, migration)).await {
            // Another process may have been quicker.
            let now = version(client).await.unwrap_or_default();
            if now.is_none_or(|now| now < migration.version) {
                return Err(failure);
            }
        }
    }
    let done = if found.is_none() { "made" } else { "brought up to date" };
    Ok(format!("{done} the tables in the schema {name} of {place} (version {SCHEMA_VERSION})"))
}

async fn survey(client: &Client) -> PgResult<Survey> {
    Survey::read(&client.run_unchecked(schema::survey(&client.schema)).await?)
}

/// The version of the tables; `None` if there are none.
async fn version(client: &Client) -> PgResult<Option<i64>> {
    if !survey(client).await?.is_there {
        return Ok(None);
    }
    schema::read_version(&client.run_unchecked(schema::version(&client.schema)).await?).map(Some)
}
