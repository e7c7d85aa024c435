"""AutoSwitch replication: the stream of controller mode, with master epochs and the SyncStateSet."""
