#!/usr/bin/env bash
# Walls for the tests: installs bubblewrap, starts a private Docker engine with a small image where that is possible.
#
#   . .ci/sandbox.sh          exports DOCKER_HOST and TIGHTLOOP_TEST_IMAGE; the engine ends with the calling shell
#   .ci/sandbox.sh COMMAND    runs a command with them
#
# Says in one line what it could not do, and never fails the caller. Every step has a time limit. Sets the EXIT trap.

SANDBOX_STATE=""
SANDBOX_ENGINE=""

sandbox_say() { echo "sandbox: $*" >&2; }

sandbox_apt() {
  command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || return 1
  DEBIAN_FRONTEND=noninteractive timeout -k 5 120 "$@" >/dev/null 2>&1
}

sandbox_bubblewrap() {
  if ! command -v bwrap >/dev/null 2>&1; then
    sandbox_apt apt-get install -y -qq bubblewrap ||
      { sandbox_apt apt-get update -qq && sandbox_apt apt-get install -y -qq bubblewrap; } || true
  fi
  if ! command -v bwrap >/dev/null 2>&1; then
    sandbox_say "no bubblewrap: it is not installed, and apt-get as root could not get it"
  elif ! timeout 10 bwrap --ro-bind / / --unshare-all true 2>/dev/null; then
    sandbox_say "no bubblewrap: it is installed, but this kernel or container forbids user namespaces"
  else
    sandbox_say "$(bwrap --version)"
  fi
}

# The engine of Debian's packages, unpacked beside the system: nothing is installed, no service is started.
sandbox_unpack() {
  local folder=$1
  mkdir -p "$folder/packages" "$folder/root"
  chmod 755 "$folder" "$folder/packages"
  local packages=(docker.io containerd runc tini)
  # From Debian 13 on the client is a package of its own.
  command -v docker >/dev/null 2>&1 || { apt-cache show docker-cli >/dev/null 2>&1 && packages+=(docker-cli); }
  (cd "$folder/packages" && { sandbox_apt apt-get download "${packages[@]}" ||
    { sandbox_apt apt-get update -qq && sandbox_apt apt-get download "${packages[@]}"; }; }) || return 1
  local package
  for package in "$folder"/packages/*.deb; do
    timeout 60 dpkg -x "$package" "$folder/root" || return 1
  done
  [ -e "$folder/root/usr/bin/docker-init" ] || ln -s tini-static "$folder/root/usr/bin/docker-init"
}

sandbox_engine() {
  local folder=$1 socket=$1/docker.sock
  local path="$folder/root/usr/bin:$folder/root/usr/sbin:$PATH:/usr/sbin:/sbin"
  # A session of its own: Ctrl-C reaches the tests first, which still need the engine to clean up.
  PATH="$path" setsid dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/docker.pid" \
    -H "unix://$socket" --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
    >"$folder/engine.log" 2>&1 &
  SANDBOX_ENGINE=$!
  local attempt
  for attempt in $(seq 60); do
    kill -0 "$SANDBOX_ENGINE" 2>/dev/null || return 1
    PATH="$path" DOCKER_HOST="unix://$socket" timeout 5 docker info >/dev/null 2>&1 && break
    [ "$attempt" = 60 ] && return 1
    sleep 0.5
  done
  export DOCKER_HOST="unix://$socket"
  command -v docker >/dev/null 2>&1 || export PATH="$PATH:$folder/root/usr/bin"
}

# A Linux of about 60 MB out of this machine's files: a shell, the core programs, git and Python.
sandbox_image() {
  local rootfs=$1/rootfs python library program
  python=$(readlink -f /usr/bin/python3 || readlink -f "$(command -v python3)")
  library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') || return 1
  local programs=("$python")
  for program in sh cat env git head id kill ln ls mkdir rm seq sleep sort tail test touch tr true wc; do
    program=$(type -P "$program" || true)
    [ -x "$program" ] && programs+=("$(readlink -f "$program")")
  done
  mkdir -p "$rootfs"/{bin,usr/bin,tmp,proc,sys,dev,etc,root,usr/local/bin} "$rootfs$(dirname "$library")"
  tar -C / --exclude='test' --exclude='__pycache__' --exclude='site-packages' --exclude='config-*' \
    --exclude='idlelib' -cf - ".$library" | tar -C "$rootfs" -xf - || return 1
  local needed
  needed=$(ldd "${programs[@]}" "$library"/lib-dynload/*.so 2>/dev/null | grep -oE '/[^ ):]+\.so[^ ):]*' | sort -u)
  for program in "${programs[@]}" $needed; do
    mkdir -p "$rootfs$(dirname "$program")"
    cp -L --update "$program" "$rootfs$program" || return 1
  done
  for program in "${programs[@]}"; do
    ln -sf "$program" "$rootfs/usr/local/bin/$(basename "$program")"
  done
  ln -sf "$(readlink -f "$(command -v sh)")" "$rootfs/bin/sh"
  ln -sf "$python" "$rootfs/usr/local/bin/python3"
  printf 'root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n' >"$rootfs/etc/passwd"
  tar -C "$rootfs" -cf - . | timeout 120 docker import -c 'ENV PATH=/usr/local/bin:/usr/bin:/bin' - \
    tightloop-test:local >/dev/null || return 1
  rm -rf "$rootfs"
}

sandbox_docker() {
  if timeout 10 docker info >/dev/null 2>&1; then
    SANDBOX_STATE=$(mktemp -d)
  elif [ "$(uname -s)" != Linux ] || [ "$(id -u)" != 0 ] || ! command -v dpkg >/dev/null 2>&1; then
    sandbox_say "no Docker engine: none answers, and one of Debian's packages needs root on Debian"
    return 0
  else
    SANDBOX_STATE=$(mktemp -d)
    sandbox_unpack "$SANDBOX_STATE" || { sandbox_say "no Docker engine: Debian's packages cannot be had"; return 0; }
    sandbox_engine "$SANDBOX_STATE" || {
      sandbox_say "no Docker engine: it does not start here: $(tail -n 1 "$SANDBOX_STATE/engine.log" | cut -c 1-200)"
      return 0
    }
  fi
  if sandbox_image "$SANDBOX_STATE" 2>"$SANDBOX_STATE/image.log"; then
    export TIGHTLOOP_TEST_IMAGE=tightloop-test:local
    sandbox_say "Docker engine $(timeout 5 docker version -f '{{.Server.Version}}' 2>/dev/null) with $TIGHTLOOP_TEST_IMAGE"
  else
    sandbox_say "no image for Docker tests: $(tail -n 1 "$SANDBOX_STATE/image.log" | cut -c 1-200)"
  fi
}

# The caller's `set -e` holds in its EXIT trap too, where an engine that is already gone would make a green run fail.
sandbox_down() {
  set +e
  [ -z "${TIGHTLOOP_TEST_IMAGE:-}" ] || timeout 20 docker image rm -f "$TIGHTLOOP_TEST_IMAGE" >/dev/null 2>&1
  if [ -n "$SANDBOX_ENGINE" ]; then
    kill "$SANDBOX_ENGINE" 2>/dev/null
    for _ in $(seq 40); do kill -0 "$SANDBOX_ENGINE" 2>/dev/null || break; sleep 0.25; done
    kill -9 "$SANDBOX_ENGINE" 2>/dev/null
    wait "$SANDBOX_ENGINE" 2>/dev/null
  fi
  if [ -n "$SANDBOX_STATE" ]; then
    grep -o "$SANDBOX_STATE/[^ ]*" /proc/mounts 2>/dev/null | sort -r | xargs -r -n 1 umount -l 2>/dev/null
    rm -rf --one-file-system "$SANDBOX_STATE"
  fi
  SANDBOX_ENGINE="" SANDBOX_STATE=""
  return 0
}

sandbox_up() {
  trap sandbox_down EXIT
  sandbox_bubblewrap
  sandbox_docker
  return 0
}

# A caller with `set -e` must not end with us: what stands before `||` runs without it.
sandbox_up || true

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  "$@"
  exit $?
fi
