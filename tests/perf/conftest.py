"""Tests of python/polyhead_perf. Those in browser/ take minutes and need chromium: `scripts/lib/run-stage report_in_browser`."""

import os

collect_ignore = [] if os.environ.get("POLYHEAD_TEST_BROWSER") == "1" else ["browser"]
