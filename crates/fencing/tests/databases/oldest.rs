//! The same statements in the oldest supported PostgreSQL.

use shardwise_fencing::Journal;
use shardwise_testkit::{Postgres, PostgresOptions};

use crate::common::{group, name, postgres_in};
use crate::progress_store::ProgressStore;
use crate::{fences_postgres, journals, progress, progress_postgres, races};

#[tokio::test]
async fn the_oldest_postgres_understands_everything() {
    let server = Postgres::start(PostgresOptions::default().oldest()).await.unwrap();
    let (_one, pool) = postgres_in(&server).await;
    fences_postgres::a_lower_epoch_is_refused(&pool).await;
    let (_two, pool) = postgres_in(&server).await;
    progress_postgres::the_statements_need_a_fence_before_them(&pool).await;
    progress::the_next_owner_goes_on(&ProgressStore::Postgres(pool)).await;
    let (database, pool) = postgres_in(&server).await;
    fences_postgres::writers_of_one_owner_go_side_by_side(&database, &pool).await;
    journals::what_is_appended_is_there(&Journal::postgres(pool.clone(), group(), name("counter"))).await;
    races::epochs_rise_in_the_order_of_commits(races::Store::postgres(pool, races::Form::Mixed).await).await;
}
