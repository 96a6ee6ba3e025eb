
# Horovod. These lines belong at the end of container/Dockerfile: extras/mpi/horovod.md says how they get there. NVIDIA's
# images have all that the build takes, NCCL below /usr; others get it from their distribution.
COPY extras/mpi/build_horovod.sh /tmp/image/
# hadolint ignore=DL3008
RUN umask 022 \
    && mpi() { mpicxx -include mpi.h -x c++ -fsyntax-only /dev/null; } \
    && if ! { cmake --version && make --version && g++ --version && mpi; }; then apt-get update \
        && apt-get install -y --no-install-recommends cmake make g++ python3-dev \
        && { mpi || apt-get install -y --no-install-recommends libopenmpi-dev openmpi-bin; } \
        && rm -rf /var/lib/apt/lists/*; fi \
    && { [ ! -e /usr/include/nccl.h ] || export NCCL_PATH=/usr; } \
    && PYTHON=python3 bash /tmp/image/build_horovod.sh /tmp/image/wheels \
    && rm -rf /tmp/image/wheels
