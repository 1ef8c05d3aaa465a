# Pando in one small image: node, command line, example programs and example trees. Docker's classic builder suffices.

FROM rust:1.95-bookworm AS build
WORKDIR /build

# The dependencies in a layer of their own: built from the manifests alone, with empty sources, and so only built again
# when a manifest or the lock file changes.
COPY Cargo.toml Cargo.lock ./
COPY protocol/Cargo.toml protocol/
COPY node/supervision/Cargo.toml node/supervision/
COPY node/Cargo.toml node/
COPY cli/Cargo.toml cli/
COPY examples/Cargo.toml examples/
COPY tests/Cargo.toml tests/
RUN for package in protocol node/supervision node cli examples tests; do \
      mkdir $package/src && echo '//! Empty.' >$package/src/lib.rs || exit 1; \
      printf '//! Empty.\nfn main() {}\n' >$package/src/main.rs || exit 1; \
    done \
 && mkdir examples/workers && cp examples/src/main.rs examples/workers/worker.rs \
 && cargo build --release --locked \
 && rm -r protocol/src node/supervision/src node/src cli/src examples/src examples/workers

# The real sources. They may be older than the empty ones, and cargo goes by the time of change.
COPY protocol protocol
COPY node node
COPY cli cli
COPY examples examples
RUN find protocol node cli examples -name '*.rs' -exec touch {} + \
 && CARGO_PROFILE_RELEASE_STRIP=debuginfo cargo build --release --locked \
 && mkdir -p /image/bin /image/examples \
 && cd target/release && cp pando pando-node shop-web shop-load shop-feed mail-worker /image/bin/ \
 && cd /build/examples && cp -r *.toml *.sh poison workers /image/examples/ && rm /image/examples/Cargo.toml

FROM debian:bookworm-slim
# A number that no user of a host is likely to have. The home folder is where a volume belongs: identity and data.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/pando --shell /usr/sbin/nologin pando \
 && install -d -o pando -g pando -m 700 /var/lib/pando
COPY --from=build /image/bin/ /usr/local/bin/
# The working folder, so that `pando apply examples/shop.toml` works as typed.
WORKDIR /opt/pando
COPY --from=build /image/examples/ examples/
USER pando
ENV PANDO_NODE_DATA=/var/lib/pando/data \
    PANDO_NODE_IDENTITY=/var/lib/pando/identity \
    PANDO_NODE_LISTEN=0.0.0.0:7400 \
    PANDO_NODE_HTTP=127.0.0.1:7480 \
    PANDO_IDENTITY=/var/lib/pando/admin
# PID 1 is Pando's own launcher. Another init would end with the node process, and the kernel would then kill the guard
# before it could report that the node's children are gone: failover would have to wait for the lease.
ENTRYPOINT ["pando-node", "launch", "--"]
CMD ["pando-node", "run"]
