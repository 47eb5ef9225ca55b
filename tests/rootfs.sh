#!/usr/bin/env bash
# Makes, once per machine, the root file systems of the Debian suites whose RabbitMQ the tests
# run beside the machine's own; `tests/rootfs.sh image` makes the one that stands for the base of the
# image. They are kept in $DELAYBOARD_CACHE, or else in ${XDG_CACHE_HOME:-~/.cache}/delayboard,
# belong to whoever called, and may be deleted at any time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -A suites=([3.10]=bookworm [4.0]=trixie [4.3]=forky)
recipe=1
cache=${DELAYBOARD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/delayboard}
stamp=etc/delayboard-rootfs

fail() {
  echo "$*" >&2
  exit 1
}

# The suite that the machine itself is: its package is run as it is.
own_suite() { (. /etc/os-release && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}") || true; }

is_made() { [ "$(cat "$cache/rootfs-$1/$stamp" 2>/dev/null)" = "$1 $recipe" ]; }

# The machine's own mirror of Debian; nothing when it has none that can be copied from, and
# mmdebstrap then knows one.
mirror() {
  apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' |
    sed -n 's/^Debian \(https\?:.*\)/\1/p' | sort -u | head -n 1
}

# Proxies, certificates and limits of the machine's apt, as options of another apt.
apt_options() {
  apt-config dump | grep -E '^Acquire::(https?|Retries|ForceIPv[46])\b.* "[^"]+";$' || true
  # A mirror's copy of a suite may be past its date; the sandbox's user cannot enter every folder.
  printf '%s\n' 'Acquire::Check-Valid-Until "false";' 'APT::Sandbox::User "root";'
}

# Prints the command that may make a root file system here, a word a line.
maker() {
  if [ "$(id -u)" = 0 ]; then
    printf '%s\n' mmdebstrap --mode=root
  elif sudo -n true 2>/dev/null; then
    printf '%s\n' sudo -n env TMPDIR=/var/tmp
    env | grep -iE '^(https?_proxy|no_proxy|SSL_CERT_(FILE|DIR)|(CURL|REQUESTS)_CA_BUNDLE)=' || true
    printf '%s\n' mmdebstrap --mode=root
  elif command -v newuidmap >/dev/null; then
    printf '%s\n' mmdebstrap --mode=unshare
  fi
}

# make_root NAME SUITE PACKAGE
make_root() {
  local name=$1 suite=$2 package=$3 new=$cache/building-$1 options=$cache/apt-options from command
  mapfile -t command < <(maker)
  [ "${#command[@]}" -gt 0 ] ||
    fail "The tests need a root file system of Debian $suite with $package, which only root, sudo without a password, or the package uidmap can make."
  from=$(mirror)
  apt_options > "$options"
  rm -rf "$new"
  mkdir -p "$new"
  export TMPDIR=/var/tmp
  # Passing through a tar leaves devices and owners behind: an ordinary user can then delete it.
  "${command[@]}" --variant=minbase --include="$package" --aptopt="$options" \
    --format=tar "$suite" - ${from:+"$from"} |
    tar --extract --directory "$new" --no-same-owner --no-same-permissions --exclude './dev/*' ||
    fail "The root file system of $suite could not be made${from:+ from $from}."
  find "$new" -perm /6000 -exec chmod a-s {} +
  rm -rf "$new"/var/cache/apt/* "$new"/var/lib/apt/lists/*
  # What is mounted over must exist.
  touch "$new/etc/hosts" "$new/etc/resolv.conf"
  if [ "$name" = image ]; then
    # A build inside it gets packages as this machine does.
    cp "$options" "$new/etc/apt/apt.conf.d/90machine"
    cp -L /etc/ssl/certs/ca-certificates.crt "$new/etc/ssl/certs/"
  fi
  echo "$name $recipe" > "$new/$stamp"
  rm -rf "$cache/rootfs-$name"
  mv -T "$new" "$cache/rootfs-$name"
}

can_enter() { bwrap --ro-bind "$cache/rootfs-$1" / --proc /proc --dev /dev true; }

lock_cache() {
  mkdir -p "$cache"
  exec 9> "$cache/lock"
  flock 9
}

main() {
  local generation suite own
  own=$(own_suite)
  lock_cache
  for generation in "${!suites[@]}"; do
    suite=${suites[$generation]}
    [ "$suite" != "$own" ] || continue
    is_made "$suite" ||
      ./step.sh "$suite" "Making a root file system of Debian $suite for RabbitMQ $generation, about a minute, 300 MB in $cache" \
        tests/rootfs.sh make "$suite" "$suite" rabbitmq-server
    can_enter "$suite" || fail "bubblewrap cannot enter $cache/rootfs-$suite: an ordinary user needs unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), root in a container the right to mount."
  done
}

case ${1:-} in
  '') main ;;
  image) lock_cache && { is_made image || make_root image bookworm ca-certificates; } ;;
  make) make_root "$2" "$3" "$4" ;;
  *) echo "usage: $0 [image]" >&2 && exit 2 ;;
esac
