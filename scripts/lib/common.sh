# Shared by the scripts of this folder's parent: messages, root, Debian packages, the Python virtual environment.
# Source it from bash with `set -euo pipefail`; it defines functions and POLYHEAD_ROOT, POLYHEAD_BUILD, nothing else.

POLYHEAD_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
POLYHEAD_BUILD=${POLYHEAD_BUILD:-$POLYHEAD_ROOT/build}

say() { printf '\n== %s\n' "$*"; }
die() { printf '\nerror: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# need_packages NAME...: installs those Debian packages that are missing; says which.
need_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  command -v apt-get >/dev/null || die "needs the Debian packages ${missing[*]} (this system has no apt-get: install their equivalents)"
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    die "needs packages and is neither root nor has sudo; run as root: apt-get install ${missing[*]}"
  fi
  say "Installing Debian packages: ${missing[*]}"
  # A broken third-party list must not stop us: what counts is whether the packages can be installed.
  as_root apt-get update -qq </dev/null || echo "apt-get update reported an error; going on with the lists there are"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 \
    -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null >/dev/null || die "apt-get could not install: ${missing[*]}"
}

# What it takes to configure and build the library, its command and its Python module.
build_packages() {
  echo g++ cmake ninja-build ccache pkg-config python3 python3-venv python3-dev \
    libhwy-dev libtbb-dev nlohmann-json3-dev libcli11-dev libfmt-dev libxsimd-dev
}

# need_venv: a virtual environment at $POLYHEAD_BUILD/venv; sets POLYHEAD_PYTHON to its interpreter.
need_venv() {
  POLYHEAD_PYTHON=$POLYHEAD_BUILD/venv/bin/python
  if ! "$POLYHEAD_PYTHON" -c 'import pip' 2>/dev/null; then
    say "Making a Python virtual environment in $POLYHEAD_BUILD/venv"
    rm -rf "$POLYHEAD_BUILD/venv"
    python3 -m venv "$POLYHEAD_BUILD/venv"
  fi
}

# use_ccache: compilers run through ccache when there is one (also inside pip's builds).
use_ccache() {
  if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    # Paths below the checkout count as relative ones, so that builds two folders deep in any checkout share their objects.
    export CCACHE_BASEDIR=$POLYHEAD_ROOT
  fi
}

# fingerprint_of_stage NAME: what a test stage's result depends on, the sources as they stand, committed or not. Measurements, and
# the texts made of them, are read by the stage perf alone; what is written in Python, the Python module and how rivals are
# measured, by the stages of these.
fingerprint_of_stage() (
  cd "$POLYHEAD_ROOT"
  inputs=(CMakeLists.txt CMakePresets.json pyproject.toml cmake include simd src tests python bench examples scripts)
  left_out=(bench/results bench/peers python tests/python tests/perf)
  case $1 in
    perf) inputs+=(README.md docs) left_out=(docs/full-test-result.md tests/python) ;;
    report_in_browser) left_out=(bench/results tests/python) ;;
    python*) left_out=(bench/results bench/peers tests/perf) ;;
  esac
  pruned=(-false)
  for path in "${left_out[@]}"; do pruned+=(-o -path "$path"); done
  find "${inputs[@]}" \( "${pruned[@]}" \) -prune -o -type f ! -path '*/__pycache__/*' ! -name '*.part' -print | sort \
    | xargs sha1sum | sha1sum | cut -d' ' -f1
)

# Of the sources as they stand: the commit, and whether something other than texts differs from it.
commit_of_sources() {
  local commit
  commit=$(git -C "$POLYHEAD_ROOT" rev-parse --short HEAD 2>/dev/null || echo "unknown commit")
  git -C "$POLYHEAD_ROOT" diff --quiet HEAD -- . ':!docs' 2>/dev/null || commit+=" with local changes"
  echo "$commit"
}

machine() {
  local cpu widest=""
  cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
  grep -q avx512vl /proc/cpuinfo && widest=" with AVX-512"
  grep -q amx_tile /proc/cpuinfo && widest=" with AVX-512 and AMX"
  echo "${cpu:-$(uname -m)}$widest, $(. /etc/os-release && echo "$PRETTY_NAME")"
}

# Two jobs at most: a template-heavy source takes up to a gigabyte, and the smallest machine we serve has two cores.
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-2}
