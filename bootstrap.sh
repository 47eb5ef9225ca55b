#!/usr/bin/env bash
# Installs the Debian packages that are missing: bootstrap.sh run|test|run-own-broker|release [first]
# "first" is only what the other steps of the set-up need, which then run beside the rest.
# bootstrap.sh python prints the Python to use.
# No system service is started, stopped or altered, neither now nor at the next boot.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

debian_python=/usr/bin/python3
python=${PYTHON:-}
policy=/usr/sbin/policy-rc.d
clusters=/etc/postgresql-common/createcluster.d/delayboard.conf
passed_on=(http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY
  SSL_CERT_FILE SSL_CERT_DIR CURL_CA_BUNDLE REQUESTS_CA_BUNDLE)

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Debian's Python is compiled with profile-guided optimisation, one from pyenv is not unless asked:
# it takes up to twice the time.
choose_python() {
  if is_new_enough "$debian_python" && { has_venv "$debian_python" || may_install; }; then
    echo "$debian_python"
  else
    command -v python3 || echo python3
  fi
}

has_java() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java major
  command -v "$java" >/dev/null || return 1
  major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
  [ "${major:-0}" -ge 17 ]
}

java_package() {
  local version
  for version in 17 21 25; do
    if apt-cache show "openjdk-$version-jre-headless" >/dev/null 2>&1; then
      echo "openjdk-$version-jre-headless"
      return
    fi
  done
  echo openjdk-17-jre-headless
}

has_fonts() { find /usr/share/fonts /usr/local/share/fonts -name '*.[to]tf' -print -quit 2>/dev/null | grep -q .; }

# Prints the packages that are missing for what is asked, all or the first of them, one a line.
missing_packages() {
  has_venv "$python" || echo python3-venv
  if [ "$1" = release ]; then
    command -v buildah >/dev/null || echo buildah
    return 0
  fi
  if [ "$1" = test ]; then
    # For the other generations of RabbitMQ: tests/rootfs.sh
    command -v mmdebstrap >/dev/null || echo mmdebstrap
    command -v bwrap >/dev/null || echo bubblewrap
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || echo debian-archive-keyring
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || command -v newuidmap >/dev/null || echo uidmap
  fi
  [ "$2" = all ] || return 0
  [ "$1" = run-own-broker ] || [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || echo rabbitmq-server
  command -v dot >/dev/null || echo graphviz
  has_java || java_package
  [ "$1" = test ] || return 0
  [ -x /usr/bin/chromium-headless-shell ] || echo chromium-headless-shell
  # Playwright's driver is linked against it.
  compgen -G '/usr/lib/*/libatomic.so.1' >/dev/null || echo libatomic1
  compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || echo postgresql
  has_fonts || echo fonts-dejavu-core
  # It checks the units of docs/deploy; the package starts nothing, and is on every host.
  command -v systemd-analyze >/dev/null || echo systemd
  # For the examples of docs/api.md
  command -v curl >/dev/null || echo curl
  # For the examples of docs/event-log.md
  command -v jq >/dev/null || echo jq
}

give_back_policy() {
  rm -f "$policy" "$clusters"
  if [ -e "$policy.delayboard" ] || [ -L "$policy.delayboard" ]; then
    mv "$policy.delayboard" "$policy"
  fi
}

forbid_services() {
  trap give_back_policy EXIT
  # One that an earlier, killed run left behind is ours and not to be kept.
  if [ -e "$policy" ] || [ -L "$policy" ]; then
    grep -qs 'of delayboard' "$policy" || mv "$policy" "$policy.delayboard"
  fi
  printf '#!/bin/sh\n# of delayboard: for the length of its package installation\nexit 101\n' > "$policy"
  chmod 755 "$policy"
  if [[ " $* " = *' postgresql '* ]]; then
    mkdir -p "${clusters%/*}"
    echo 'create_main_cluster = false' > "$clusters"
  fi
}

installed_packages() { dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' | sed -n 's/^ii *//p' | sort -u; }

# Keeps the services of package $1 from starting at the next boot.
disable_services() {
  local path unit
  dpkg-query -L "$1" | while read -r path; do
    unit=${path##*/}
    case $path in
      */systemd/system/*@.*) ;;
      */systemd/system/*.service | */systemd/system/*.socket | */systemd/system/*.timer)
        # Units without [Install] are part of others; there is nothing to disable.
        ! grep -qs '^\[Install\]' "$path" ||
          DPKG_MAINTSCRIPT_PACKAGE=$1 deb-systemd-helper disable "$unit" >/dev/null || true
        ;;
      /etc/init.d/*) update-rc.d "$unit" disable >/dev/null 2>&1 || true ;;
    esac
  done
}

install_as_root() {
  local before after package
  export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
  apt-get update -q || echo 'bootstrap: apt-get update failed; trying with the lists at hand' >&2
  before=$(installed_packages)
  forbid_services "$@"
  local status=0
  apt-get install -q -y --no-install-recommends --no-remove -o DPkg::Lock::Timeout=300 "$@" || status=$?
  after=$(installed_packages)
  for package in $(comm -13 <(echo "$before") <(echo "$after")); do
    disable_services "$package"
  done
  return "$status"
}

# Prints the command that installs packages as root, a word a line.
installer() {
  local name
  if [ "$(id -u)" != 0 ]; then
    printf '%s\n' sudo -n env
    for name in "${passed_on[@]}"; do
      [ -z "${!name:-}" ] || echo "$name=${!name}"
    done
  fi
  printf '%s\n' bash bootstrap.sh install-as-root
}

may_install() {
  command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

main() {
  local purpose=$1 part=${2:-all} missing command
  local -A why=([first]='that the other steps need, some seconds' [all]="for make ${purpose%%-*}, about two minutes")
  if ! is_new_enough "$python"; then
    echo "Delayboard needs Python 3.11 or newer; name it with PYTHON=... ($python is not)." >&2
    exit 1
  fi
  mapfile -t missing < <(missing_packages "$purpose" "$part")
  [ "${#missing[@]}" -gt 0 ] || return 0
  if [[ " ${missing[*]} " = *' chromium-headless-shell '* ]] && grep -qs '^ID=ubuntu' /etc/os-release; then
    echo 'Ubuntu has Chromium as a snap only, which the tests cannot drive: put one at /usr/bin/chromium-headless-shell.' >&2
    exit 1
  fi
  if ! may_install; then
    mapfile -t missing < <(missing_packages "$purpose" all)
    echo "Missing packages: ${missing[*]}. Install them as root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  mapfile -t command < <(installer)
  ./step.sh apt "Installing Debian packages ${why[$part]}, no system service is started: ${missing[*]}" \
    "${command[@]}" "${missing[@]}"
  mapfile -t missing < <(missing_packages "$purpose" "$part")
  if [ "${#missing[@]}" -gt 0 ]; then
    echo "Still missing after the installation: ${missing[*]}" >&2
    exit 1
  fi
}

python=${python:-$(choose_python)}
case ${1:-} in
  python) echo "$python" ;;
  run | test | run-own-broker | release) main "$@" ;;
  install-as-root) shift && install_as_root "$@" ;;
  *) echo "usage: $0 run|test|run-own-broker|release [first] | python" >&2 && exit 2 ;;
esac
