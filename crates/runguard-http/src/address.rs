//! Which addresses a request made on somebody else's word may go to.
//!
//! A model, or whoever writes to it, can name any URL, and the machine it runs on can reach more than they may: its own
//! services, the neighbours in its network, the metadata service that hands out cloud credentials. Only addresses that
//! belong to the public internet are let through. For IPv4 that is everything outside the special blocks; IPv6 is read the
//! other way round, because of its space only `2000::/3` has ever been handed out: what is not known to be public is not.
//!
//! Some IPv6 addresses are only a wrapping for an IPv4 address, and the packet ends there: those are judged by what they wrap.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The blocks of IPv4 that are not public unicast, as (first address, length of the prefix).
const SPECIAL_V4: [([u8; 4], u32); 15] = [
    ([0, 0, 0, 0], 8),       // this network; 0.0.0.0 reaches the machine itself
    ([10, 0, 0, 0], 8),      // private
    ([100, 64, 0, 0], 10),   // behind the provider's address translation
    ([127, 0, 0, 0], 8),     // the machine itself
    ([169, 254, 0, 0], 16),  // link-local, and the metadata services of the clouds
    ([172, 16, 0, 0], 12),   // private
    ([192, 0, 0, 0], 24),    // protocol assignments
    ([192, 0, 2, 0], 24),    // documentation
    ([192, 88, 99, 0], 24),  // 6to4 relays, withdrawn
    ([192, 168, 0, 0], 16),  // private
    ([198, 18, 0, 0], 15),   // benchmarks
    ([198, 51, 100, 0], 24), // documentation
    ([203, 0, 113, 0], 24),  // documentation
    ([224, 0, 0, 0], 4),     // multicast
    ([240, 0, 0, 0], 4),     // reserved, and broadcast at its end
];

/// The blocks within `2000::/3` that are not public unicast.
const SPECIAL_V6: [([u16; 2], u32); 3] = [
    ([0x2001, 0x0000], 23), // protocol assignments, among them Teredo, which hides an IPv4 address
    ([0x2001, 0x0db8], 32), // documentation
    ([0x3fff, 0x0000], 20), // documentation
];

/// Whether the address is a globally routable unicast address. Everything else (loopback, private, link-local, carrier
/// translation, documentation, multicast, reserved) is not, whatever it is wrapped in.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => embedded_v4(address).map_or_else(|| is_public_v6(address), is_public_v4),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !SPECIAL_V4.iter().any(|&(first, prefix_bits)| (address.to_bits() ^ Ipv4Addr::from(first).to_bits()) >> (32 - prefix_bits) == 0)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let start = (u32::from(first) << 16) | u32::from(second);
    let is_special = SPECIAL_V6
        .iter()
        .any(|&([high, low], prefix_bits)| (start ^ ((u32::from(high) << 16) | u32::from(low))) >> (32 - prefix_bits) == 0);
    first >> 13 == 0b001 && !is_special
}

/// The IPv4 address a packet to this IPv6 address ends at: v4-mapped, v4-compatible, NAT64 (`64:ff9b::/96`) and 6to4.
///
/// The local NAT64 prefix `64:ff9b:1::/48` is not read: where the address stands in it is each network's own choice, so it
/// is treated as what it is, not public.
pub fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let halves = |high: u16, low: u16| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => Some(halves(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{embedded_v4, is_public};
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    /// The first and last address of every block that must be refused.
    const REFUSED: [&str; 78] = [
        "0.0.0.0",
        "0.255.255.255",
        "10.0.0.0",
        "10.255.255.255",
        "100.64.0.0",
        "100.127.255.255",
        "127.0.0.0",
        "127.0.0.1",
        "127.255.255.255",
        "169.254.0.0",
        "169.254.169.254",
        "169.254.255.255",
        "172.16.0.0",
        "172.31.255.255",
        "192.0.0.0",
        "192.0.0.255",
        "192.0.2.0",
        "192.0.2.255",
        "192.88.99.0",
        "192.88.99.255",
        "192.168.0.0",
        "192.168.255.255",
        "198.18.0.0",
        "198.19.255.255",
        "198.51.100.0",
        "198.51.100.255",
        "203.0.113.0",
        "203.0.113.255",
        "224.0.0.0",
        "239.255.255.255",
        "240.0.0.0",
        "255.255.255.254",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::0.0.0.2",
        "::10.1.2.3",
        "::ffff:127.0.0.1",
        "::ffff:0.0.0.0",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:192.168.1.1",
        "::ffff:0:127.0.0.1",
        "::ffff:0:8.8.8.8",
        "64:ff9b::127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::1",
        "64:ff9b:1::8.8.8.8",
        "64:ff9b:1:ffff:ffff:ffff:ffff:ffff",
        "100::1",
        "100:0:0:1::1",
        "1fff:ffff::1",
        "2001::",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:2::1",
        "2001:20::1",
        "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff",
        "2001:db8::1",
        "2001:db8:ffff::1",
        "2002:7f00:1::",
        "2002:7f00:1::1",
        "2002:a00:1::1",
        "2002:a9fe:a9fe::1",
        "2002:c0a8:101::1",
        "3fff::1",
        "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fdff::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
    ];

    /// The neighbours of those blocks, and addresses of well-known services.
    const PUBLIC: [&str; 37] = [
        "1.0.0.0",
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "93.184.216.34",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "191.255.255.255",
        "192.0.1.0",
        "192.0.3.0",
        "192.88.98.255",
        "192.88.100.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "198.51.99.255",
        "198.51.101.0",
        "203.0.112.255",
        "223.255.255.255",
        "2000::1",
        "2001:200::1",
        "2001:db7:ffff::1",
        "2001:db9::1",
        "2001:4860:4860::8888",
        "2606:4700:4700::1111",
        "3ffe:ffff::1",
        "3fff:1000::1",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
    ];

    fn parsed(text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|_| panic!("{text} is no address"))
    }

    #[test]
    fn special_addresses_are_refused() {
        for text in REFUSED {
            assert!(!is_public(parsed(text)), "{text} is not public");
        }
    }

    #[test]
    fn public_addresses_are_let_through() {
        for text in PUBLIC {
            assert!(is_public(parsed(text)), "{text} is public");
        }
    }

    #[test]
    fn wrapped_addresses_are_found() {
        for (text, inner) in [
            ("::ffff:1.2.3.4", Some(Ipv4Addr::new(1, 2, 3, 4))),
            ("::1.2.3.4", Some(Ipv4Addr::new(1, 2, 3, 4))),
            ("64:ff9b::1.2.3.4", Some(Ipv4Addr::new(1, 2, 3, 4))),
            ("2002:102:304:5::6", Some(Ipv4Addr::new(1, 2, 3, 4))),
            ("::", None),
            ("::1", None),
            ("64:ff9b:1::1.2.3.4", None),
            ("2606:4700::1.2.3.4", None),
        ] {
            let IpAddr::V6(address) = parsed(text) else { panic!("{text} is IPv4") };
            assert_eq!(embedded_v4(address), inner, "{text}");
        }
    }

    proptest! {
        /// The standard library knows some of the blocks: whatever it calls special is refused here.
        #[test]
        fn nothing_the_standard_library_calls_special_is_public(bits in any::<u32>()) {
            let address = Ipv4Addr::from_bits(bits);
            let is_special = address.is_loopback() || address.is_private() || address.is_link_local() || address.is_multicast()
                || address.is_broadcast() || address.is_documentation() || address.is_unspecified();
            prop_assert!(!(is_special && is_public(IpAddr::V4(address))));
        }

        /// No wrapping makes a refused address a public one.
        #[test]
        fn wrapping_changes_nothing(bits in any::<u32>()) {
            let address = Ipv4Addr::from_bits(bits);
            let [high, low] = [(bits >> 16) as u16, bits as u16];
            for wrapped in [
                address.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(is_public(IpAddr::V6(wrapped)), is_public(IpAddr::V4(address)));
            }
        }

        /// The same for IPv6: outside `2000::/3` only a wrapped address can be public.
        #[test]
        fn only_the_global_block_is_public(bits in any::<u128>()) {
            let address = Ipv6Addr::from_bits(bits);
            if is_public(IpAddr::V6(address)) && embedded_v4(address).is_none() {
                prop_assert_eq!(bits >> 125, 1);
            }
        }
    }
}
