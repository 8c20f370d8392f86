//! The trigger runs with its owner's rights and the path of the writer: it must find its own tables, functions, operators and types,
//! wherever that path leads.

use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::postgres;
use shardwise_testkit::Postgres;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::common::Outbox;
use crate::publishing::delivered;
use crate::shared::events;

/// Everything that the trigger could look up by its name alone. Whatever is used fails.
const HOSTILE: &str = "
    CREATE SCHEMA hostile;
    DO $$
    DECLARE
        body text := 'BEGIN RAISE EXCEPTION ''hostile was used''; END';
        f record;
    BEGIN
        FOR f IN SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS takes, format_type(p.prorettype, NULL) AS returns
            FROM pg_proc AS p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.provariadic = 0 AND p.proname IN
                ('octet_length', 'isfinite', 'json_typeof', 'nextval', 'pg_sequence_last_value', 'gen_random_uuid', 'pg_notify', 'setval',
                 'current_setting', 'set_config', 'mod', 'right', 'to_hex', 'date_part', 'clock_timestamp')
        LOOP
            EXECUTE format('CREATE FUNCTION hostile.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', f.proname, f.takes, f.returns, body);
        END LOOP;
        FOR f IN SELECT o.oprname, o.oprleft::regtype AS l, o.oprright::regtype AS r, o.oprresult::regtype AS returns, o.oid FROM pg_operator AS o
            WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprname IN ('=', '<>', '<', '<=', '>', '>=', '||', '+', '-', '*')
                AND o.oprleft IN ('int4'::regtype, 'int8'::regtype, 'text'::regtype)
                AND o.oprright IN ('int4'::regtype, 'int8'::regtype, 'text'::regtype)
        LOOP
            EXECUTE format('CREATE FUNCTION hostile.f%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L', f.oid, f.l, f.r, f.returns, body);
            EXECUTE format('CREATE OPERATOR hostile.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = hostile.f%s)', f.oprname, f.l, f.r, f.oid);
        END LOOP;
        EXECUTE format('CREATE FUNCTION hostile.pg_column_size(anyelement) RETURNS int LANGUAGE plpgsql AS %L', body);
        EXECUTE format('CREATE FUNCTION hostile.format(text, text) RETURNS text LANGUAGE plpgsql AS %L', body);
    END $$;
    CREATE TABLE hostile.outbox_meta (LIKE outbox_meta);
    CREATE TABLE hostile.outbox_aggregate (LIKE outbox_aggregate);
    CREATE TABLE hostile.outbox_head (LIKE outbox_head);
    CREATE SEQUENCE hostile.outbox_floor;
    CREATE SEQUENCE hostile.outbox_order;
    CREATE SEQUENCE hostile.outbox_asleep;
    CREATE SEQUENCE hostile.outbox_woken;
    CREATE DOMAIN hostile.json AS pg_catalog.json CHECK (false);
    CREATE DOMAIN hostile.oid AS pg_catalog.oid CHECK (false);
    CREATE DOMAIN hostile.regclass AS pg_catalog.regclass CHECK (false);
    CREATE DOMAIN hostile.bool AS pg_catalog.bool CHECK (false);
    CREATE DOMAIN hostile.uuid AS pg_catalog.uuid CHECK (false);
    CREATE DOMAIN hostile.text AS pg_catalog.text CHECK (false)";

/// A session that is alone guesses after so many new aggregates at the latest.
const GUESSES_AFTER: usize = 17;

async fn run(conn: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.unwrap();
}

async fn refused(conn: &mut PgConnection, sql: String) -> String {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.unwrap_err().to_string()
}

fn inserting(columns: &str, values: &str) -> String {
    format!("INSERT INTO public.outbox (aggregatetype, aggregateid, type, {columns}) VALUES ({values})")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_writer_puts_before_the_servers_own_is_not_used() {
    let outbox = Outbox::new().await;
    outbox.execute(HOSTILE).await;
    let role = format!("writer_{}", outbox.database.name());
    outbox.execute(&format!("CREATE ROLE {role}; GRANT INSERT ON outbox TO {role}; GRANT USAGE ON SCHEMA hostile TO {role}")).await;
    outbox.insert(events("known", 1..=1)).await;
    assert_eq!(delivered(&outbox).await.len(), 1);
    let mut writer = outbox.connection().await;
    run(&mut writer, format!("SET ROLE {role}; SET search_path = hostile, pg_catalog, public")).await;
    let misled = refused(&mut writer, "SELECT 'a' = 'a'".to_owned()).await;
    assert!(misled.contains("hostile was used"), "the path leads there: {misled}");
    // Twice each: on the list again and on it, new and not.
    for aggregate in ["known", "known", "new", "new"] {
        run(&mut writer, inserting("payload", &format!("'order', '{aggregate}', 't', '{{}}'"))).await;
    }
    run(&mut writer, inserting("payload", "'order', 'new', 't', pg_catalog.repeat('x', 5000)")).await;
    run(&mut writer, inserting("headers", r#"'order', 'new', 't', '{"a":"b"}'"#)).await;
    run(&mut writer, inserting("id", "'order', 'new', 't', NULL")).await;
    for (columns, values, message) in [
        ("payload", "'', '1', 't', 'x'", "aggregatetype must have 1 to 255 bytes"),
        ("headers", "'a', '1', 't', '[]'", "headers must be a JSON object"),
        ("payload", "'a', '1', 't', pg_catalog.repeat('x', 1048577)", "has 1048577 bytes; at most 1048576 are allowed"),
    ] {
        let error = refused(&mut writer, inserting(columns, values)).await;
        assert!(error.contains(message), "{values}: {error}");
    }
    // With the guess that an aggregate is new: right, wrong, and what makes the session guess.
    run(&mut writer, "SET shardwise.new_aggregates = 'on'".to_owned()).await;
    for aggregate in ["guessed", "known"] {
        run(&mut writer, inserting("payload", &format!("'order', '{aggregate}', 't', '{{}}'"))).await;
    }
    for number in 0..GUESSES_AFTER {
        run(&mut writer, inserting("payload", &format!("'order', 'guess {number}', 't', '{{}}'"))).await;
    }
    let guess = sqlx::query_scalar::<_, String>("SELECT pg_catalog.current_setting('shardwise.new_aggregates')");
    assert_eq!(guess.fetch_one(&mut writer).await.unwrap(), "on");
    // A publisher sleeps, so this one notifies.
    outbox.execute("UPDATE outbox_meta SET notify = true; SELECT nextval('outbox_asleep')").await;
    run(&mut writer, inserting("payload", "'order', 'new', 't', '{}'")).await;
    let mut operator = outbox.connection().await;
    run(&mut operator, "SET search_path = hostile, pg_catalog, public".to_owned()).await;
    let error = refused(&mut operator, "UPDATE public.outbox SET headers = '[]'".to_owned()).await;
    assert!(error.contains("headers must be a JSON object"), "{error}");
    run(&mut operator, "UPDATE public.outbox SET headers = '{}'".to_owned()).await;
    assert_eq!(delivered(&outbox).await.len(), 10 + GUESSES_AFTER);
    run(&mut writer, inserting("payload", "'order', 'new', 't', '{}'")).await;
    outbox.execute("ALTER SEQUENCE outbox_order RESTART").await;
    let error = refused(&mut writer, inserting("payload", "'order', 'new', 't', '{}'")).await;
    assert!(error.contains("the sequence outbox_order fell back"), "{error}");
}

/// The outbox in a schema, made by the files as another migration tool runs them.
async fn migrate(conn: &mut PgConnection, schema: &str) {
    run(conn, format!("CREATE SCHEMA {schema}; SET search_path = {schema}")).await;
    for migration in &postgres::MIGRATIONS {
        run(conn, format!("BEGIN; {}; COMMIT", migration.up)).await;
    }
}

/// The plans of the session's first insert must not be those of its second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_changes_its_path_writes_to_the_outbox_that_it_leads_to() {
    let outbox = Outbox::of(&Postgres::shared().await.unwrap().database().await.unwrap());
    let (mut migrating, mut writer) = (outbox.connection().await, outbox.connection().await);
    for schema in ["one", "two"] {
        migrate(&mut migrating, schema).await;
    }
    for path in ["one", "two", "two, one", "one, public", "pg_catalog, one", "two"] {
        run(
            &mut writer,
            format!("SET search_path = {path}; INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('order', 'a', 't')"),
        )
        .await;
    }
    for schema in ["one", "two"] {
        let found = format!(
            "SELECT count(*), count(DISTINCT o.aggregate), bool_and(a.key = 'order/a' AND o.seq > a.drained_seq) FROM {schema}.outbox AS o
                JOIN {schema}.outbox_aggregate AS a ON a.id = o.aggregate"
        );
        assert_eq!(outbox.execute(&found).await, [["3", "1", "t"].map(|text| Some(text.to_owned()))], "{schema}");
    }
}

/// Its name is part of the functions' text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_whose_name_needs_quotes_works_all_the_way_up_and_down() {
    let outbox = Outbox::of(&Postgres::shared().await.unwrap().database().await.unwrap());
    let schema = r#""We""ird 'x\ %s %1$s ~= $text$ $$ <BROKEN>""#;
    let mut conn = outbox.connection().await;
    migrate(&mut conn, schema).await;
    let mut writer = outbox.connection().await;
    for _ in 0..2 {
        run(&mut writer, format!("INSERT INTO {schema}.outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'a', 't', '')"))
            .await;
    }
    run(&mut conn, "UPDATE outbox_meta SET notify = true; SELECT nextval('outbox_asleep')".to_owned()).await;
    run(
        &mut writer,
        format!("INSERT INTO {schema}.outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'b', 't', repeat('x', 5000))"),
    )
    .await;
    let refused =
        sqlx::raw_sql(AssertSqlSafe(format!("INSERT INTO {schema}.outbox (aggregatetype, aggregateid, type) VALUES ('', 'a', 't')")))
            .execute(&mut writer)
            .await
            .unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().constraint(), Some("aggregatetype must have 1 to 255 bytes"));
    let listed: i64 =
        sqlx::query_scalar("SELECT count(*) FROM outbox_aggregate WHERE last_seq <> drained_seq").fetch_one(&mut conn).await.unwrap();
    assert_eq!(listed, 2);
    for migration in postgres::MIGRATIONS.iter().rev() {
        run(&mut conn, format!("BEGIN; {}; COMMIT", migration.down)).await;
    }
    let left = "SELECT count(*) FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())";
    let left: i64 = sqlx::query_scalar(left).fetch_one(&mut conn).await.unwrap();
    assert_eq!(left, 0);
}
