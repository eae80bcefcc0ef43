#include "support/peak.hpp"

#define POLYHEAD_DECLARE_PEAK(space) \
  namespace space {                  \
  extern const PeakKernel peak;      \
  }

namespace polyhead::bench {

#if defined(POLYHEAD_HAVE_SSE4)
POLYHEAD_DECLARE_PEAK(N_SSE4)
#endif
#if defined(POLYHEAD_HAVE_AVX2)
POLYHEAD_DECLARE_PEAK(N_AVX2)
#endif
#if defined(POLYHEAD_HAVE_AVX512)
POLYHEAD_DECLARE_PEAK(N_AVX3)
#endif
#if defined(POLYHEAD_HAVE_NEON)
POLYHEAD_DECLARE_PEAK(N_NEON)
#endif
#if defined(POLYHEAD_HAVE_SVE)
POLYHEAD_DECLARE_PEAK(N_SVE)
#endif

const PeakKernel* peak_kernel(Isa isa) {
  switch (isa) {
#if defined(POLYHEAD_HAVE_SSE4)
    case Isa::sse4:
      return &N_SSE4::peak;
#endif
#if defined(POLYHEAD_HAVE_AVX2)
    case Isa::avx2:
      return &N_AVX2::peak;
#endif
#if defined(POLYHEAD_HAVE_AVX512)
    case Isa::avx512:
    case Isa::avx512_bf16:
    case Isa::amx:
      return &N_AVX3::peak;
#endif
#if defined(POLYHEAD_HAVE_NEON)
    case Isa::neon:
    case Isa::neon_bf16:
      return &N_NEON::peak;
#endif
#if defined(POLYHEAD_HAVE_SVE)
    case Isa::sve:
      return &N_SVE::peak;
#endif
    default:
      return nullptr;
  }
}

}  // namespace polyhead::bench
