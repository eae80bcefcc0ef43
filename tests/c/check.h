/* What the C programs check with: a failure is told and counted, and main() returns whether there was one. */
#ifndef POLYHEAD_TESTS_C_CHECK_H
#define POLYHEAD_TESTS_C_CHECK_H

#include <stdio.h>
#include <string.h>

#include "polyhead/polyhead.h"

static int failures = 0;

static void check(int condition, const char* text, int line) {
  if (condition) return;
  ++failures;
  fprintf(stderr, "line %d: %s (last message: %s)\n", line, text, polyhead_last_message());
}
#define CHECK(condition) check((condition) != 0, #condition, __LINE__)

static void check_status(polyhead_status expected, polyhead_status status, const char* part, const char* text, int line) {
  if (status == expected && strstr(polyhead_last_message(), part) != NULL) return;
  ++failures;
  fprintf(stderr, "line %d: %s is %s, expected %s naming \"%s\" (last message: %s)\n", line, text, polyhead_status_name(status),
          polyhead_status_name(expected), part, polyhead_last_message());
}
/* The call fails with this status and a message that holds this text. */
#define FAILS(expected, part, call) check_status(expected, call, part, #call, __LINE__)
#define SUCCEEDS(call) check_status(POLYHEAD_OK, call, "", #call, __LINE__)

#endif
