// Symbol visibility: the library is built with hidden visibility, what carries this macro is its interface.
#pragma once

#if defined(POLYHEAD_STATIC)
#define POLYHEAD_EXPORT
#elif defined(_WIN32)
#if defined(POLYHEAD_BUILDING)
#define POLYHEAD_EXPORT __declspec(dllexport)
#else
#define POLYHEAD_EXPORT __declspec(dllimport)
#endif
#else
#define POLYHEAD_EXPORT __attribute__((visibility("default")))
#endif
