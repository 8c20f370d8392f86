//! Backends that break one clause each: the suite finds every one of them. A suite that passes whatever it is given proves nothing.

mod backend;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use backend::Wrong;
use shardwise_core::GroupName;
use shardwise_discovery::conformance::{self, Scope};
use shardwise_discovery::{Clock, MemoryBackend};

/// What a backend does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    Nothing,
    // Discovery.
    UpdatesAddARecord,
    RenewalsDoNothing,
    MembersNeverExpire,
    UpdatesRenew,
    GrantsCountFromTheAnswer,
    TheFirstViewIsEmpty,
    ChangesAreLost,
    ViewsGoBack,
    SilenceIsSilence,
    RenewalsAreReported,
    EmptinessIsAnError,
    DrainingIsGone,
    AnyLifeRenews,
    AnyLifeDeregisters,
    TheStampStandsStill,
    TheNewestLifeWins,
    LateUpdatesCount,
    RenewingHeals,
    ErrorsAreCodes,
    NamesAreFileNames,
    GroupsIgnoreCase,
    RecordsAreCutShort,
    RejoinGraceIsCutShort,
    RejoinGraceNeverEnds,
    SteppingAwayTakesTwoSteps,
    AwayKeepsItsId,
    TheDeadStepAway,
    // Claims.
    HeldIsGrantedAgain,
    EpochsAreAllOne,
    TheDeadClaim,
    ReleasesDoNothing,
    AnybodyReleases,
    ChangesOfClaimsAreLost,
    ClaimsAreSilent,
    FloorsAreForgotten,
    OneThatIsHeldKeepsAll,
    // Notes.
    NotesAreNotRead,
    NotesAreOverwritten,
    TheSameTextIsNoWrite,
    NotesGoWithTheirMembers,
    LongNotesAreCutShort,
    NotesIgnoreCase,
}

type CaseFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Whether the case fails over a backend with that mistake. On paused time.
fn fails(mistake: Mistake, case: impl for<'a> FnOnce(&'a Scope) -> CaseFuture<'a>) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let clock = Clock::tokio();
            let store = MemoryBackend::new(clock.clone());
            let wrong = |inner| Wrong { inner, mistake, clock: clock.clone(), calls: Arc::default(), last: Arc::default() };
            let scope = Scope {
                backend: Arc::new(wrong(store.clone())),
                peer: Arc::new(wrong(store.link())),
                group: GroupName::new("conformance").expect("a valid name"),
                ttl: Duration::from_secs(3),
                clock: clock.clone(),
                guard: Box::new(()),
            };
            case(&scope).await;
        });
    }));
    ran.is_err()
}

/// A test for each mistake: these cases find it, and pass without it.
macro_rules! found {
    ($($test:ident: $mistake:ident => $($case:ident),+;)*) => {
        $(
            #[test]
            fn $test() {
                $(
                    assert!(!fails(Mistake::Nothing, |scope| Box::pin(conformance::$case(scope))), "{} without a mistake", stringify!($case));
                    assert!(
                        fails(Mistake::$mistake, |scope| Box::pin(conformance::$case(scope))),
                        "{} does not find {:?}",
                        stringify!($case),
                        Mistake::$mistake
                    );
                )+
            }
        )*
    };
}

found! {
    clause_01_a_second_record: UpdatesAddARecord => clause_01_one_record_per_member;
    clause_01_a_renewal_without_effect: RenewalsDoNothing => clause_01_a_renewed_member_stays;
    clause_02_members_that_never_expire: MembersNeverExpire => clause_02_a_silent_member_leaves_within_its_ttl_and_margin;
    clause_02_updates_that_renew: UpdatesRenew => clause_02_an_update_does_not_prolong_the_record;
    clause_03_grants_that_count_from_the_answer: GrantsCountFromTheAnswer => clause_03_a_grant_counts_from_the_start_of_its_request;
    clause_04_an_empty_first_view: TheFirstViewIsEmpty => clause_04_the_first_view_is_full;
    clause_04_lost_changes: ChangesAreLost => clause_04_no_change_is_lost_between_list_and_watch;
    clause_04_views_that_go_back: ViewsGoBack => clause_04_views_never_go_back;
    clause_05_a_silent_watch: SilenceIsSilence => clause_05_silence_is_proven;
    clause_05_renewals_that_are_reported: RenewalsAreReported => clause_05_renewals_are_not_reported;
    clause_06_emptiness_as_an_error: EmptinessIsAnError => clause_06_an_empty_group_is_an_empty_view;
    clause_07_draining_that_is_gone: DrainingIsGone => clause_07_draining_is_seen_before_gone;
    clause_08_any_life_renews: AnyLifeRenews => clause_08_another_incarnation_touches_nothing;
    clause_08_any_life_deregisters: AnyLifeDeregisters => clause_08_another_incarnation_touches_nothing;
    clause_08_a_stamp_that_stands_still: TheStampStandsStill => clause_08_an_id_in_use_is_named_and_its_stamp_moves;
    clause_08_the_newest_life_wins: TheNewestLifeWins => clause_08_of_many_racing_for_one_id_one_wins;
    clause_08_late_updates: LateUpdatesCount => clause_08_an_update_that_was_given_up_undoes_no_later_one;
    clause_09_renewing_that_heals: RenewingHeals => clause_09_after_expiry_renewals_and_updates_are_lost;
    clause_10_errors_that_are_codes: ErrorsAreCodes => clause_10_errors_name_their_operation;
    clause_11_names_that_are_file_names: NamesAreFileNames => clause_11_any_name_goes;
    clause_11_groups_that_ignore_case: GroupsIgnoreCase => clause_11_groups_do_not_see_each_other;
    clause_12_a_rejoin_grace_that_is_cut_short: RejoinGraceIsCutShort => clause_12_an_away_member_keeps_its_place_for_the_rejoin_grace;
    clause_12_a_rejoin_grace_that_never_ends: RejoinGraceNeverEnds => clause_12_an_away_member_keeps_its_place_for_the_rejoin_grace;
    clause_12_two_steps: SteppingAwayTakesTwoSteps => clause_12_stepping_away_and_returning_are_one_step;
    clause_12_an_id_that_is_kept: AwayKeepsItsId => clause_12_of_many_that_return_one_wins;
    clause_12_the_dead_step_away: TheDeadStepAway => clause_12_only_a_living_record_steps_away;
    records_that_are_cut_short: RecordsAreCutShort => what_is_registered_is_what_is_seen;
    claims_01_held_and_granted_again: HeldIsGrantedAgain => claims_01_a_free_resource_is_granted_once;
    claims_02_epochs_that_are_all_one: EpochsAreAllOne => claims_02_epochs_rise;
    claims_03_the_dead_claim: TheDeadClaim => claims_03_only_a_living_record_claims;
    claims_04_members_that_never_expire: MembersNeverExpire => claims_04_a_silent_members_claims_come_free;
    claims_05_releases_without_effect: ReleasesDoNothing => claims_05_what_is_released_is_free_at_once;
    claims_05_anybody_releases: AnybodyReleases => claims_05_no_member_releases_what_is_not_theirs;
    claims_06_lost_changes: ChangesOfClaimsAreLost => claims_06_no_change_is_lost;
    claims_06_a_silent_watch: ClaimsAreSilent => claims_06_silence_is_proven;
    claims_07_forgotten_floors: FloorsAreForgotten => claims_07_the_store_is_one_and_a_floor_lifts_its_epochs;
    claims_08_one_that_is_held_keeps_all: OneThatIsHeldKeepsAll => claims_08_one_that_is_held_does_not_keep_the_others;
    notes_01_notes_that_are_not_read: NotesAreNotRead => notes_01_what_was_written_is_read_by_all;
    notes_02_notes_that_are_overwritten: NotesAreOverwritten => notes_02_what_is_not_as_expected_stays_and_is_reported;
    notes_03_the_same_text_as_no_write: TheSameTextIsNoWrite => notes_03_the_same_text_again_is_another_version;
    notes_04_notes_that_go_with_their_members: NotesGoWithTheirMembers => notes_04_they_outlive_the_members;
    notes_05_long_notes_that_are_cut_short: LongNotesAreCutShort => notes_05_a_text_that_is_too_long_is_refused;
    notes_06_notes_that_ignore_case: NotesIgnoreCase => notes_06_any_name_goes_and_none_meets_another;
}
