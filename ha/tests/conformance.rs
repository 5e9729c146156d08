//! The conformance suite on every backend, against real servers: one test for each case and backend.
//!
//! Servers are started when the first test needs them, and shared by all cases that don't disturb them.
//! Leases are as short as each store grants; `TANIST_TEST_ALL=1` tests with the defaults.

use tanist_ha::testing::conformance::{Place, run};

/// Logs according to `RUST_LOG`.
fn init_log() {
    // Only the first test's call installs it.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
}

/// Generates a test for each case on one backend.
macro_rules! tests {
    ($backend:ident: $($theme:ident { $($place:ident: $($case:ident),*;)* })*) => {$(
        mod $theme {
            use super::super::*;
            use tanist_ha::testing::conformance::$theme as cases;
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    init_log();
                    let open = tanist_ha::$backend::conformance::open;
                    run(stringify!($backend), open, Place::$place, stringify!($case), cases::$case).await;
                }
            )*)*
        }
    )*};
}

/// The list of all cases.
macro_rules! suite {
    ($($backend:ident)*) => {$(
        mod $backend {
            tests! { $backend:
                mutual_exclusion {
                    Shared:
                        at_most_one_process_leads_in_each_epoch,
                        of_two_deposers_at_once_one_leads,
                        of_two_that_believe_to_lead_only_the_younger_one_writes;
                }
                fencing {
                    Shared:
                        a_deposed_term_cannot_write,
                        a_term_whose_key_a_stranger_deleted_cannot_write_without_it,
                        a_process_stopped_past_its_lease_and_deposed_cannot_write,
                        a_suspended_term_that_is_already_over_does_not_come_back,
                        a_term_that_resigns_while_it_is_deposed_ends_once,
                        a_term_that_attaches_while_it_is_deposed_does_not_undo_that;
                }
                ambiguity {
                    Shared:
                        a_process_whose_answer_to_taking_is_lost_finds_that_it_leads,
                        a_process_whose_request_to_take_is_lost_takes_all_the_same,
                        a_deposer_whose_answer_is_lost_finds_that_it_leads,
                        a_taker_that_is_deposed_before_it_knows_does_not_lead,
                        a_process_whose_answer_to_resigning_is_lost_has_resigned,
                        a_commit_whose_answers_are_lost_is_applied_once,
                        a_commit_of_a_term_that_ends_before_its_answer_is_not_denied;
                }
                late_duplicates {
                    Shared:
                        late_creates_updates_and_deletes_change_nothing,
                        a_commit_that_arrives_in_a_younger_term_changes_nothing,
                        a_late_acquisition_changes_nothing,
                        a_late_resignation_changes_nothing,
                        a_late_attachment_changes_nothing,
                        late_leader_information_changes_nothing,
                        an_acquisition_that_is_applied_after_it_was_given_up_is_taken_up;
                }
                resign {
                    Shared:
                        a_resigned_term_is_handed_over_without_a_timeout,
                        a_closed_process_is_not_waited_for,
                        a_lone_process_that_resigned_leads_again_in_another_term,
                        a_term_that_was_resigned_is_not_granted_again;
                }
                sessions {
                    Shared:
                        a_term_whose_lease_was_lost_is_attached_to_the_next_one,
                        a_restarted_process_takes_over_from_its_earlier_start_at_once,
                        a_dead_leader_is_replaced,
                        members_and_the_confirmed_leader_are_known_to_all;
                }
                foreign_writes {
                    Shared:
                        leader_information_that_a_stranger_removed_is_published_again,
                        a_term_whose_epoch_a_stranger_overwrote_is_suspended_until_it_is_put_back,
                        a_term_whose_epoch_a_stranger_wrote_in_other_bytes_can_be_deposed,
                        an_accepted_store_refuses_all_that_belonged_to_it_before,
                        a_store_whose_epoch_can_not_be_read_is_led_again_once_it_is_accepted,
                        an_epoch_names_who_took_it_and_where;
                }
                kinds {
                    Shared:
                        items_of_each_declared_kind_are_kept_apart,
                        a_kind_that_was_not_declared_is_refused;
                }
                scale {
                    Shared:
                        ten_thousand_items_are_listed_page_by_page,
                        values_of_all_sizes_are_kept,
                        a_transaction_too_large_harms_nothing;
                }
                chunks {
                    Shared:
                        a_record_larger_than_a_transaction_is_kept_in_chunks,
                        chunks_without_a_record_are_removed_by_the_next_term,
                        a_record_above_the_limit_is_refused_before_anything_is_written;
                }
                watches {
                    Shared:
                        a_feed_tells_of_a_gap_only_when_the_ring_was_passed;
                    Ensemble:
                        a_feed_sees_every_transaction_across_reconnects,
                        an_observer_sees_the_leader_across_reconnects;
                }
                caches {
                    Shared:
                        a_cache_that_followed_is_proven_from_memory,
                        a_cache_notices_what_was_changed_by_hand,
                        a_cache_that_the_ring_has_left_behind_reads_everything,
                        a_store_says_how_it_is;
                    Ensemble:
                        a_cache_that_loses_its_watches_is_right_all_the_same;
                }
                outages {
                    Own:
                        a_server_that_restarts_with_its_data_changes_no_leader,
                        a_server_that_restarts_without_its_data_is_refused_loudly;
                    Ensemble:
                        a_quorum_lost_for_longer_than_any_lease_changes_no_leader;
                }
            }
        }
    )*};
}

suite! {
    memory
    embedded
    etcd
    zookeeper
}
