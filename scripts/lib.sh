# shellcheck shell=bash
# What the scripts share: how they speak, and how they become root. Sourced, never run.

# A user's PATH often has no sbin, where mkfs, losetup and ip live.
PATH=$PATH:/usr/sbin:/sbin
# rustup's place, for shells that have not read its profile yet.
[ ! -x ~/.cargo/bin/cargo ] || PATH=$PATH:~/.cargo/bin

if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; else bold='' plain=''; fi

say() { printf '%s==> %s%s\n' "$bold" "$*" "$plain"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# What makes a command root's: nothing for root, sudo for anyone else.
root=()
[ "$(id -u)" -eq 0 ] || root=(sudo)

as_root() {
  [ ${#root[@]} -eq 0 ] || have sudo || die "this needs root: run it as root, or install sudo"
  "${root[@]}" "$@"
}

# Runs a command whose output matters only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    rm -f "$log"
    return 0
  fi
  cat "$log" >&2
  rm -f "$log"
  die "this failed: $*"
}
