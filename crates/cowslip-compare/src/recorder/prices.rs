//! The prices of the kernel's events on this machine now.

use cowslip_sys::{call_cost, fault_cost};

use crate::Prices;

/// The least of so many measurements counts: the turns of others on the processor are no price.
const MEASUREMENTS: usize = 3;

/// Measures them, which takes some milliseconds; `None` where one cannot be.
pub fn prices() -> Option<Prices> {
    let prices = Prices {
        fault: least(fault_cost::base_page_ns)?,
        // There are none where huge pages are off.
        huge_fault: least(fault_cost::huge_page_ns).unwrap_or(Prices::USUAL.huge_fault),
        switch: least(call_cost::switch_ns)?,
        call: least(call_cost::call_ns)?,
    };
    Some(prices).filter(Prices::is_plausible)
}

fn least<E>(measure: fn() -> Result<f64, E>) -> Option<f64> {
    let all = (0..MEASUREMENTS).map(|_| measure().ok());
    all.collect::<Option<Vec<f64>>>()?.into_iter().min_by(f64::total_cmp).map(|ns| ns / 1e9)
}
