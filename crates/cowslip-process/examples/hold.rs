//! Holds a process some times: `hold PID [ROUNDS]`.

fn main() -> Result<(), cowslip_sys::error::Error> {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<i32>().expect("a number"));
    let (pid, rounds) = (words.next().expect("a process"), words.next().unwrap_or(1));
    for _ in 0..rounds {
        let plan = cowslip_process::look(pid)?;
        plan.lacks().iter().for_each(|lack| println!("{lack}"));
        let holder = plan.hold()?;
        println!(
            "holder {}: {} threads, {:?}",
            holder.pid(),
            holder.threads().len(),
            holder.pause()
        );
    }
    Ok(())
}
