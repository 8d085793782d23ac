//! ATA over Ethernet (AoE revision 11): disks on the same Ethernet, without a kernel module.

#![forbid(unsafe_code)]
