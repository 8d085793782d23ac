//! The only unsafe code of this crate: system calls that create name spaces and network devices.
//!
//! In: names, addresses and borrowed descriptors. Out: the kernel's errno. Always holds: no pointer is used after its
//! call.
#![allow(unsafe_code)]

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Moves the calling thread into a new network name space, which has only a loopback interface that is down.
pub(super) fn leave_network() -> io::Result<()> {
    // SAFETY: only the network name space is unshared; memory and descriptors stay shared with the other threads.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Configures `command` to start in the network name space `net`.
pub(super) fn start_in(command: &mut Command, net: OwnedFd) {
    let enter = move || Ok(move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network))?);
    // SAFETY: between fork and exec the closure makes one system call, on a descriptor that it owns, and allocates
    // nothing.
    unsafe { command.pre_exec(enter) };
}

/// Gives the calling thread real-time priority, if permitted.
pub(super) fn run_first() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads `param`, which outlives the call; 0 is the calling thread.
    done(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) })
}

/// Attaches an opened /dev/net/tun to a new TUN device of this name, which carries bare IP packets.
pub(super) fn make_tun(tun: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    control(tun, libc::TUNSETIFF, name, libc::__c_anonymous_ifr_ifru { ifru_flags: flags })
}

/// Sets the MTU of a device in bytes. `socket`, here and below, is any socket of its name space.
pub(super) fn set_mtu(socket: BorrowedFd<'_>, name: &str, mtu: i32) -> io::Result<()> {
    control(socket, libc::SIOCSIFMTU, name, libc::__c_anonymous_ifr_ifru { ifru_mtu: mtu })
}

/// Sets the queue length of a device, in packets.
pub(super) fn set_queue(socket: BorrowedFd<'_>, name: &str, packets: i32) -> io::Result<()> {
    control(socket, libc::SIOCSIFTXQLEN, name, libc::__c_anonymous_ifr_ifru { ifru_ifindex: packets })
}

/// Sets the address of a device, with a /24 netmask.
pub(super) fn set_address(socket: BorrowedFd<'_>, name: &str, address: Ipv4Addr) -> io::Result<()> {
    control(socket, libc::SIOCSIFADDR, name, inet(address))?;
    control(socket, libc::SIOCSIFNETMASK, name, inet(Ipv4Addr::new(255, 255, 255, 0)))
}

/// Sets a device up.
pub(super) fn set_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    control(socket, libc::SIOCSIFFLAGS, name, libc::__c_anonymous_ifr_ifru { ifru_flags: flags })
}

fn inet(address: Ipv4Addr) -> libc::__c_anonymous_ifr_ifru {
    let [a, b, c, d] = address.octets();
    // In a `struct sockaddr_in` the port comes first, then the address.
    let data = [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0].map(|byte: u8| byte as libc::c_char);
    let family = libc::AF_INET as libc::sa_family_t;
    libc::__c_anonymous_ifr_ifru { ifru_addr: libc::sockaddr { sa_family: family, sa_data: data } }
}

fn control(
    fd: BorrowedFd<'_>,
    request: libc::Ioctl,
    name: &str,
    value: libc::__c_anonymous_ifr_ifru,
) -> io::Result<()> {
    let mut ifreq = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: value };
    assert!(name.len() < ifreq.ifr_name.len(), "a device's name is short");
    for (to, from) in ifreq.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: each request of this file takes a pointer to a `struct ifreq`, which outlives the call, and changes
    // nothing else.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), request, &mut ifreq) })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
