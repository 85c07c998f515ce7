"""The carrier on Mooncake's real transfer engine, by TCP: it needs libibverbs1 and librdmacm1 of the system."""

from tests.weights.test_mooncake import (  # noqa: F401 - the tests and what they need
    make,
    run,
    test_a_cell_reads_each_version_out_of_the_cores_memory,
    test_a_core_of_another_transport_is_told_apart,
    test_a_read_that_fails_says_so,
    test_a_run_that_needs_what_is_not_installed_is_refused_before_it_begins,
    test_what_is_not_offered_any_more_comes_from_the_run_folder,
)
