// What every public entry wraps its work in: one exception type comes out, whatever went wrong inside.
#pragma once

#include <new>
#include <stdexcept>
#include <utility>

#include "polyhead/error.hpp"

namespace polyhead::api {

template <typename Work>
decltype(auto) entry(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, "out of memory");
  } catch (const std::length_error&) {  // a container asked for more than could ever be allocated
    throw Error(ErrorCode::out_of_memory, "out of memory");
  }
}

}  // namespace polyhead::api
