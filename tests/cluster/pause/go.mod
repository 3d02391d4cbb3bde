module agenttuning.io/tests/cluster/pause

go 1.26.0
