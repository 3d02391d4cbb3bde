# An image of today with the code of an earlier version: what a cluster has beside a newer operator.
# The context is the folder of that version below tests/e2e/releases; the packages below stay today's.
ARG BASE_IMAGE=tiny
FROM ${BASE_IMAGE}
USER 0
RUN rm -rf /opt/agent-tuning
ADD operator.tar.gz /opt/
RUN python -m compileall -q --invalidation-mode checked-hash /opt/agent-tuning
USER 1000
