#!/bin/sh
# Installs Lemon into ~/.lemon: downloads a release, checks it, and makes it the one in use.
# Whatever goes wrong, what was installed before stays in use. `install.sh --help` tells the rest.
set -eu
umask 077

# Where the releases are, unless LEMON_INSTALL_BASE_URL says so; whoever publishes fills it in.
default_base_url=''

usage() {
    cat <<'END'
usage: install.sh [OPTIONS]

Options:
  --force        Download and install again what is installed already.
  --verify       Start the release once on free ports before it is put to use.
  --modify-path  Have new shells find lemon (a line in ~/.profile, and in ~/.zshenv for zsh).
  --skip-setup   Do not go on with lemon setup.
  --help         This text.

Environment:
  LEMON_VERSION               the release, such as 2026.11.0 [default: the newest]
  LEMON_CHANNEL               stable, preview or nightly; the last two need a version [default: stable]
  LEMON_PROFILE               full, min or sim [default: full]
  LEMON_PYTHON                the Python to use, of the release's minor version
  LEMON_INSTALL_BASE_URL      where the releases are
  LEMON_INSTALL_IGNORE_GLIBC  set: try a release that needs a newer C library
END
}

say() { printf 'install: %s\n' "$1" >&2; }
fail() { say "$1"; exit 1; }

force=no verify=no modify_path=no skip_setup=no
for option in "$@"; do
    case $option in
        --force) force=yes ;;
        --verify) verify=yes ;;
        --modify-path) modify_path=yes ;;
        --skip-setup) skip_setup=yes ;;
        --help | -h) usage; exit 0 ;;
        *) usage >&2; say "unknown option $option"; exit 2 ;;
    esac
done

channel=${LEMON_CHANNEL:-stable}
version=${LEMON_VERSION:-latest}
profile=${LEMON_PROFILE:-full}
base_url=${LEMON_INSTALL_BASE_URL:-$default_base_url}
base_url=${base_url%/}

case $channel in
    stable) ;;
    preview | nightly) [ "$version" != latest ] || fail "the channel $channel needs an exact version: set LEMON_VERSION" ;;
    *) fail "there is no channel $channel: stable, preview or nightly" ;;
esac
case $profile in
    full | min | sim) ;;
    *) fail "there is no profile $profile: full, min or sim" ;;
esac
# The checksum comes the same way as the archive, so the way has to be safe.
case $base_url in
    '') fail "where are the releases? set LEMON_INSTALL_BASE_URL" ;;
    https://*) protocol='=https' ;;
    # A folder of this machine, such as one that was just built.
    file:///*) protocol='=file' ;;
    http://127.0.0.1 | http://127.0.0.1[:/]* | http://localhost | http://localhost[:/]*) protocol='=http,https' ;;
    *) fail "$base_url is neither an https address nor a file:// one" ;;
esac
[ -n "${HOME:-}" ] || fail "HOME is not set"
for program in curl tar python3; do
    command -v "$program" >/dev/null 2>&1 || fail "$program is not there: install it and try again"
done

# What sh cannot do safely: JSON, checksums, locks, and replacing a link in one step.
helper() { python3 -I -c "$helpers" "$@"; }
helpers=$(cat <<'END'
import fcntl, hashlib, json, os, platform, re, secrets, socket, sys

def refuse(text):
    sys.exit(f"install: {text}")

def numbers(text):
    return tuple(int(part) for part in str(text).split(".") if part.isdecimal())

def short(profile):
    name = str(profile).removeprefix("lemon_").removeprefix("runtime_")
    return {"sim_broadcast_platform": "sim"}.get(name, name)

def choose(path, channel, version, profile, ignore_glibc):
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
    except ValueError as error:
        refuse(f"the manifest is not JSON: {error}")
    if not isinstance(manifest, dict) or manifest.get("schema") != 2:
        refuse("the manifest is of another schema than 2: get a newer install.sh")
    machine = platform.machine().lower()
    machine = {"aarch64": "arm64", "amd64": "x86_64"}.get(machine, machine)
    here = f"{sys.platform}-{machine}"
    offered = str(manifest.get("version"))
    if not re.fullmatch(r"\d{4}\.\d{2}\.\d+(-[0-9A-Za-z.-]+)?", offered):
        refuse(f"the manifest offers {offered!r:.60}, which is no version")
    if manifest.get("channel") != channel or version not in ("latest", offered):
        refuse(f"the manifest offers {offered} of channel {manifest.get('channel')!r:.20}")
    fitting = [
        one for one in manifest.get("artifacts", [])
        if one.get("platform") == here and short(one.get("profile")) == profile
    ]
    if not fitting:
        refuse(f"{offered} has no archive for {here}, profile {profile}")
    one = fitting[0]
    digest, name = str(one.get("sha256")), str(one.get("file"))
    if not re.fullmatch("[0-9a-f]{64}", digest):
        refuse(f"the manifest names no checksum for {name:.80}: nothing is installed")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name):
        refuse(f"the manifest names a file {name!r:.80}")
    needed, (libc, have) = one.get("glibc_min"), platform.libc_ver()
    if needed and not ignore_glibc:
        if libc != "glibc":
            refuse(f"{offered} needs glibc {needed}, and this machine has another C library")
        if numbers(have) < numbers(needed):
            refuse(f"{offered} needs glibc {needed}, this machine has {have} "
                   "(LEMON_INSTALL_IGNORE_GLIBC=1 tries all the same)")
    python = ".".join(str(manifest.get("python")).split(".")[:2])
    if not re.fullmatch(r"3\.\d+", python):
        refuse("the manifest does not name its Python")
    print(offered, name, digest, python)

def check(path, wanted):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != wanted:
        refuse("the archive does not have the checksum that its manifest names: nothing is installed")

def lock(fd):
    try:
        fcntl.flock(int(fd), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        refuse("another installation or update is at work: wait for its end")

def link(target, path):
    beside = f"{path}.{secrets.token_hex(8)}"
    beside = os.path.join(os.path.dirname(beside), "." + os.path.basename(beside))
    os.symlink(target, beside)
    os.replace(beside, path)

def ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(count))]
    print(*(one.getsockname()[1] for one in held))

globals()[sys.argv[1]](*sys.argv[2:])
END
)

get() { curl -fsSL --proto "$protocol" --proto-redir "$protocol" --retry 2 -o "$2" "$1" || fail "$1 cannot be fetched"; }

home=$HOME/.lemon
versions=$home/versions
mkdir -p "$versions" "$home/bin" "$home/run" "$home/tmp"
chmod 700 "$home" "$home/run" "$home/tmp"
exec 9>"$versions/.lock"
helper lock 9

scratch=$(mktemp -d "$home/tmp/install-XXXXXX")
staged=
new=
place=
child=
clean_up() {
    [ -z "$child" ] || kill "$child" 2>/dev/null || :
    rm -rf "$scratch"
    [ -z "$staged" ] || rm -rf "$staged"
    # Cut off between two renames: the one that was there takes its place again.
    if [ -n "$place" ] && [ -e "$place.old.partial" ] && [ ! -e "$place" ]; then mv "$place.old.partial" "$place"; fi
    # Installed and not in use: as if it had never come.
    [ -z "$new" ] || rm -rf "$new"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

release_url=$base_url/$channel/$version
get "$release_url/manifest.json" "$scratch/manifest.json"
chosen=$(helper choose "$scratch/manifest.json" "$channel" "$version" "$profile" "${LEMON_INSTALL_IGNORE_GLIBC:-}")
read -r version file digest minor <<END
$chosen
END

# The release brings no Python of its own; better said now than after the download.
python_fits() { "$1" -I -S -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$minor')" >/dev/null 2>&1; }
if [ -n "${LEMON_PYTHON:-}" ]; then
    python_fits "$LEMON_PYTHON" || fail "Lemon $version needs Python $minor, and $LEMON_PYTHON is none"
elif ! python_fits "python$minor" && ! python_fits python3; then
    fail "Lemon $version needs Python $minor, which is not there: install it, or set LEMON_PYTHON to one"
fi

place=$versions/$version
if [ "$force" = no ] && [ -x "$place/bin/lemon" ]; then
    say "Lemon $version is here already (--force installs it again)"
else
    say "downloading $file"
    get "$release_url/$file" "$scratch/archive.tar.gz"
    helper check "$scratch/archive.tar.gz" "$digest"
    say "unpacking"
    rm -rf "$place.partial"
    staged=$place.partial
    mkdir "$staged"
    tar -xzof "$scratch/archive.tar.gz" -C "$staged" || fail "the archive cannot be unpacked"
    [ -f "$staged/bin/lemon" ] && [ -x "$staged/bin/lemon" ] || fail "the archive has no bin/lemon to start"
fi

# Starts the release in a home of its own and asks it how it is.
try_out() {
    trial=$(mktemp -d /tmp/lemon-XXXXXX)
    read -r router gateway <<END
$(helper ports 2)
END
    (
        unset LEMON_DOTENV_DIR
        export HOME="$trial" LEMON_ROUTER_HEALTH_PORT="$router" LEMON_GATEWAY_HEALTH_PORT="$gateway"
        exec "$1/bin/lemon" start >"$trial/log" 2>&1 9>&-
    ) &
    child=$!
    healthy=no
    tries=0
    while [ "$tries" -lt 120 ] && kill -0 "$child" 2>/dev/null; do
        if curl -fs -o /dev/null --noproxy '*' "http://127.0.0.1:$router/health"; then healthy=yes; break; fi
        tries=$((tries + 1))
        sleep 0.25
    done
    kill "$child" 2>/dev/null || :
    wait "$child" 2>/dev/null || :
    child=
    [ "$healthy" = yes ] || cat "$trial/log" >&2
    rm -rf "$trial"
    [ "$healthy" = yes ]
}

if [ "$verify" = yes ]; then
    say "starting Lemon $version once"
    try_out "${staged:-$place}" || fail "Lemon $version does not start: what is in use stays"
fi
if [ -n "$staged" ]; then
    # What was there gets out of the way first: a folder cannot take the place of another.
    [ ! -e "$place" ] || mv "$place" "$place.old.partial"
    [ -e "$place.old.partial" ] || new=$place
    mv "$staged" "$place"
    staged=
fi
helper link "$version" "$versions/current"
new=
rm -rf "$place.old.partial"
helper link ../versions/current/bin/lemon "$home/bin/lemon"
# Where `lemon update` looks for the next one: on servers only.
case $base_url in
    file:*) rm -f "$versions/source" ;;
    *) printf '%s\n' "$base_url/{channel}/{version}/manifest.json" >"$versions/source" ;;
esac

if [ ! -e "$home/env" ]; then
    cat >"$home/env" <<'END'
# Puts lemon on PATH: . ~/.lemon/env
case ":$PATH:" in
    *":$HOME/.lemon/bin:"*) ;;
    *) export PATH="$HOME/.lemon/bin:$PATH" ;;
esac
END
fi
add_line() {
    line='. "$HOME/.lemon/env"'
    grep -qxF "$line" "$1" 2>/dev/null || printf '%s\n' "$line" >>"$1"
}
if [ "$modify_path" = yes ]; then
    add_line "$HOME/.profile"
    case ${SHELL:-} in */zsh) add_line "$HOME/.zshenv" ;; esac
fi

say "Lemon $version is installed: $home/bin/lemon"
case ":$PATH:" in
    *":$home/bin:"*) lemon=lemon ;;
    *) lemon=$home/bin/lemon; say "to have it on PATH: . ~/.lemon/env" ;;
esac
if [ "$profile" = sim ]; then
    exit 0
elif [ "$skip_setup" = no ] && (exec </dev/tty >/dev/tty) 2>/dev/null; then
    clean_up
    trap - EXIT
    exec 9>&-
    "$home/bin/lemon" setup </dev/tty >/dev/tty 2>&1 || say "setup goes on with: $lemon setup"
else
    say "next: $lemon setup"
fi
