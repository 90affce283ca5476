//! How the paper can be read: questions that its text leaves open, and the answers that it allows.

use hiroma_sim::{Config, FetchPath, FrameFree, Spread, Switching, ThreadPlacement};

use crate::paper::RATES;

/// One answer.
#[derive(Debug)]
pub struct Choice {
    /// Short name, unique among the answers of its question.
    pub name: &'static str,
    /// What in the paper allows it.
    pub allowed_by: &'static str,
    apply: fn(&mut Config),
}

/// Something that the paper leaves open.
#[derive(Debug)]
pub struct Question {
    /// Short name.
    pub name: &'static str,
    /// The answers; the first is the starting point of the search.
    pub choices: &'static [Choice],
}

/// A page is sent on this often, which is as good as without a limit.
const WITHOUT_LIMIT: u32 = 200;
/// Accesses that a disk serves at the same time, so that none waits.
const NO_QUEUE: u32 = 256;

/// All questions.
pub const QUESTIONS: [Question; 10] = [
    Question {
        name: "sizes",
        choices: &[
            Choice {
                name: "normal",
                allowed_by: "table 1: virtual memory of 1 to 128 pages, normally distributed",
                apply: |config| config.load.virtual_spread = Spread::Normal,
            },
            Choice {
                name: "uniform",
                allowed_by: "section 3: the size of a program is uniformly distributed, with mean M",
                apply: |config| config.load.virtual_spread = Spread::Uniform,
            },
        ],
    },
    Question {
        name: "threads on",
        choices: &[
            Choice {
                name: "any nodes",
                allowed_by: "section 3: threads do not migrate; where they start is not said",
                apply: |config| config.load.threads_on = ThreadPlacement::Random,
            },
            Choice {
                name: "neighbours",
                allowed_by: "section 3: a process has one or several threads; where they start is not said",
                apply: |config| config.load.threads_on = ThreadPlacement::Together,
            },
        ],
    },
    Question {
        name: "frame free",
        choices: &[
            Choice {
                name: "placed",
                allowed_by: "section 2.3: a page-out fails at its target, and the page must then be placed elsewhere",
                apply: |config| config.node.frame_free = FrameFree::Placed,
            },
            Choice {
                name: "sent",
                allowed_by: "section 2.3: with cascading the target chooses again, so that the source is done once it has sent",
                apply: |config| config.node.frame_free = FrameFree::Sent,
            },
        ],
    },
    Question {
        name: "told",
        choices: &[
            Choice {
                name: "memory in use",
                allowed_by: "section 4: 87.5 % and 100 % (high), 75 % and 0 % (low) of local memory",
                apply: |config| set_marks(config, &[250, 1000], &[125, 0]),
            },
            Choice {
                name: "first free frame too",
                allowed_by: "section 4: 0 % is a watermark; section 2.1: peers are told when it is crossed",
                apply: |config| set_marks(config, &[250, 1000, 16], &[125, 0]),
            },
            Choice {
                name: "free frames",
                allowed_by: "section 2.1: the number of free frames passes a high or a low watermark",
                apply: |config| set_marks(config, &[875, 1000], &[750, 0]),
            },
        ],
    },
    Question {
        name: "messages",
        choices: &[
            Choice {
                name: "along a tree",
                allowed_by: "section 2.1: in a domain, information goes to the nodes around its centre",
                apply: |config| config.network.multicast = true,
            },
            Choice {
                name: "to each peer",
                allowed_by: "section 2.1: networks of point-to-point links, where telling all causes congestion",
                apply: |config| config.network.multicast = false,
            },
        ],
    },
    Question {
        name: "attempts",
        choices: &[
            Choice {
                name: "eight",
                allowed_by: "nothing is said of a limit",
                apply: |config| config.policy.attempts_max = 8,
            },
            Choice {
                name: "without limit",
                allowed_by: "section 2.3: a page goes to disk if no node with a free frame is found; no other limit",
                apply: |config| config.policy.attempts_max = WITHOUT_LIMIT,
            },
        ],
    },
    Question {
        name: "page-ins",
        choices: &[
            Choice {
                name: "direct",
                allowed_by: "section 3: the extended page table records where a page is",
                apply: |config| config.network.fetch_path = FetchPath::Direct,
            },
            Choice {
                name: "walk back",
                allowed_by: "section 3: each node has an extended page table; section 4: pages move hop by hop",
                apply: |config| config.network.fetch_path = FetchPath::Back,
            },
        ],
    },
    Question {
        name: "on the way",
        choices: &[
            Choice {
                name: "links only",
                allowed_by: "section 3: each node has point-to-point links to four neighbours",
                apply: |config| {
                    (config.network.forward_ns, config.network.page_forward_ns) = (0, 0)
                },
            },
            Choice {
                name: "processors",
                allowed_by: "section 4: at high rates the network is loaded everywhere, and distance decides",
                apply: |config| {
                    let network = &mut config.network;
                    network.forward_ns = network.handler_ns;
                    network.page_forward_ns = network.page_handler_ns;
                },
            },
        ],
    },
    Question {
        name: "switching",
        choices: &[
            Choice {
                name: "store and forward",
                allowed_by: "section 4: the distance of a transfer has a large influence on its time",
                apply: |config| config.network.switching = Switching::StoreAndForward,
            },
            Choice {
                name: "cut-through",
                allowed_by: "nothing is said of how nodes pass messages on",
                apply: |config| config.network.switching = Switching::CutThrough,
            },
        ],
    },
    Question {
        name: "disks",
        choices: &[
            Choice {
                name: "queue",
                allowed_by: "section 3: one disk for each sub-mesh, which its nodes share",
                apply: |config| config.disk.parallel = 1,
            },
            Choice {
                name: "never wait",
                allowed_by: "section 4: 33 ms at every arrival rate without global placement: no queue grows",
                apply: |config| config.disk.parallel = NO_QUEUE,
            },
        ],
    },
];

fn set_marks(config: &mut Config, high: &[u32], low: &[u32]) {
    (config.policy.high_permille, config.policy.low_permille) = (high.to_vec(), low.to_vec());
}

/// An answer to every question.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reading([u8; QUESTIONS.len()]);

impl Reading {
    /// The first answer to every question.
    pub const FIRST: Reading = Reading([0; QUESTIONS.len()]);

    /// The one under which most of the paper comes out, as far as is known.
    pub const BEST: Reading = Reading([0, 1, 0, 0, 1, 0, 0, 0, 1, 0]);

    /// The same with another answer to one question.
    pub fn with(self, question: usize, choice: usize) -> Reading {
        let mut reading = self;
        reading.0[question] = choice as u8;
        reading
    }

    /// All readings that differ from this one in one answer.
    pub fn neighbours(self) -> Vec<Reading> {
        let others = QUESTIONS.iter().enumerate().flat_map(|(question, of)| {
            (0..of.choices.len()).map(move |choice| self.with(question, choice))
        });
        others.filter(|&other| other != self && other.is_possible()).collect()
    }

    /// Whether the simulator can run it: processors pass on whole messages only.
    pub fn is_possible(self) -> bool {
        let has = |name: &str| self.choices().any(|(_, choice)| choice.name == name);
        !(has("processors") && has("cut-through"))
    }

    /// Questions with their answers.
    pub fn choices(self) -> impl Iterator<Item = (&'static Question, &'static Choice)> {
        QUESTIONS
            .iter()
            .zip(self.0)
            .map(|(question, choice)| (question, &question.choices[usize::from(choice)]))
    }

    /// The answers that differ from the first ones.
    pub fn describe(self) -> String {
        let other = self
            .choices()
            .filter(|(question, choice)| !std::ptr::eq(&question.choices[0], *choice));
        let other: Vec<String> =
            other.map(|(question, choice)| format!("{}: {}", question.name, choice.name)).collect();
        if other.is_empty() { "as first read".to_owned() } else { other.join("; ") }
    }

    /// Sets a cluster to this reading. What is fitted is left as it is.
    pub fn apply(self, config: &mut Config) {
        self.choices().for_each(|(_, choice)| (choice.apply)(config));
        config.load.arrivals_per_s = RATES.middle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_answers_are_the_defaults() {
        let mut config = Config::default();
        Reading::FIRST.apply(&mut config);
        config.load.arrivals_per_s = Config::default().load.arrivals_per_s;
        assert_eq!(config, Config::default());
        assert_eq!(Reading::FIRST.describe(), "as first read");
    }

    #[test]
    fn every_answer_changes_something_and_can_be_simulated() {
        let mut first = Config::default();
        Reading::FIRST.apply(&mut first);
        let answers: usize = QUESTIONS.iter().map(|question| question.choices.len() - 1).sum();
        let neighbours = Reading::FIRST.neighbours();
        assert_eq!(neighbours.len(), answers);
        for reading in neighbours.into_iter().chain(Reading::BEST.neighbours()) {
            let mut config = Config::default();
            reading.apply(&mut config);
            assert_ne!(config, first, "{}", reading.describe());
            assert_eq!(config.validate(), Ok(()), "{}", reading.describe());
        }
    }
}
