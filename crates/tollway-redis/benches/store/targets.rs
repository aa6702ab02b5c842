//! What was aimed at, and what came out.

/// A figure that was aimed at.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) ratio: f64,
    pub(crate) bound: Bound,
}

/// Where it should be.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtMost(most) => self.ratio <= most,
            Bound::AtLeast(least) => self.ratio >= least,
        }
    }
}

/// All of them in one table.
pub(crate) fn print(targets: &[Target]) {
    println!("\n| target | aimed at | measured | |\n|---|---|---|---|");
    for target in targets {
        let bound = match target.bound {
            Bound::AtMost(most) => format!("≤ {most}"),
            Bound::AtLeast(least) => format!("≥ {least}"),
        };
        let met = if target.is_met() { "met" } else { "missed" };
        println!("| {} | {bound} | {:.2} | {met} |", target.name, target.ratio);
    }
    let missed = targets.iter().filter(|target| !target.is_met()).count();
    println!("\n{} targets, {missed} missed", targets.len());
}
