//! Replays the golden vectors in `testdata/`, which `docs/reference/placement_check.py` computed from the protocol's text alone.
//!
//! To add one: write the question, run `python docs/reference/placement_check.py --rewrite`, read the diff, and run this test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use shardwise_core::{
    Holder, Incarnation, IncrementalRing, InstanceId, LoadMargin, Member, MemberState, PlacementKind, PlacementParams, Replicas, Resource,
    ShardKey, SlotOwners, Succession, Version, View, ViewPlacement, Weight, hash_bytes, slot_of, slot_start,
};

/// A key in the notation of the vectors; every kind goes through the type that a user would pass.
enum Key {
    Text(String),
    Bytes(Vec<u8>),
    Unsigned(u32, u128),
    Signed(u32, i128),
}

impl Key {
    fn read(text: &str) -> Self {
        let (kind, value) = text.split_once(' ').unwrap();
        match kind.split_at(1) {
            _ if kind == "text" => Self::Text(quoted(value).into()),
            _ if kind == "bytes" => {
                Self::Bytes((0..value.len()).step_by(2).map(|at| u8::from_str_radix(&value[at..at + 2], 16).unwrap()).collect())
            }
            _ if kind == "counting" => Self::Bytes((0..251).cycle().take(value.parse().unwrap()).collect()),
            ("u", bits) => Self::Unsigned(bits.parse().unwrap(), value.parse().unwrap()),
            ("i", bits) => Self::Signed(bits.parse().unwrap(), value.parse().unwrap()),
            _ => panic!("unknown kind of key: {text}"),
        }
    }
}

impl ShardKey for Key {
    fn with_key<R>(&self, read: impl FnOnce(shardwise_core::Key<'_>) -> R) -> R {
        match self {
            Self::Text(text) => text.with_key(read),
            Self::Bytes(bytes) => bytes.with_key(read),
            Self::Unsigned(8, n) => u8::try_from(*n).unwrap().with_key(read),
            Self::Unsigned(16, n) => u16::try_from(*n).unwrap().with_key(read),
            Self::Unsigned(32, n) => u32::try_from(*n).unwrap().with_key(read),
            Self::Unsigned(64, n) => u64::try_from(*n).unwrap().with_key(read),
            Self::Unsigned(128, n) => n.with_key(read),
            Self::Signed(8, n) => i8::try_from(*n).unwrap().with_key(read),
            Self::Signed(16, n) => i16::try_from(*n).unwrap().with_key(read),
            Self::Signed(32, n) => i32::try_from(*n).unwrap().with_key(read),
            Self::Signed(64, n) => i64::try_from(*n).unwrap().with_key(read),
            Self::Signed(128, n) => n.with_key(read),
            Self::Unsigned(bits, _) | Self::Signed(bits, _) => panic!("no integer has {bits} bits"),
        }
    }
}

/// The text between the first and the last quotation mark.
fn quoted(text: &str) -> &str {
    &text[text.find('"').unwrap() + 1..text.rfind('"').unwrap()]
}

fn id(text: &str) -> InstanceId {
    InstanceId::new(quoted(text)).unwrap()
}

fn weight(text: &str) -> Weight {
    Weight::new(text.parse().unwrap()).unwrap()
}

fn of_slots(text: &str) -> (&str, u32) {
    let (what, slots) = text.rsplit_once(" of ").unwrap();
    (what, slots.parse().unwrap())
}

/// The setup from the lines without an arrow, and the placement once the first question needs it.
#[derive(Default)]
struct Stage {
    params: PlacementParams,
    members: Vec<Member>,
    /// The zones of the members that follow, in turn; empty for none.
    zones: Vec<String>,
    /// The version of the members that follow.
    version: Option<String>,
    holders: BTreeMap<Resource, Holder>,
    placed: Option<SlotOwners>,
}

impl Stage {
    fn apply(&mut self, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap();
        match verb {
            "circle" => *self = Self { params: params(rest), ..Self::default() },
            "member" => self.add(id(rest), weight(rest.split_once(' ').unwrap().0), MemberState::Active),
            "draining" => self.add(id(rest), weight(rest.split_once(' ').unwrap().0), MemberState::Draining),
            "version" => self.version = (rest != "none").then(|| quoted(rest).into()),
            "holds" => {
                let holder = Holder { instance_id: id(rest), incarnation: Incarnation::new(0) };
                let (first, last) = rest.rsplit_once(' ').unwrap().1.split_once('-').unwrap();
                let slots = first.parse::<u32>().unwrap()..=last.parse().unwrap();
                self.holders.extend(slots.map(|slot| (Resource::Slot(slot), holder.clone())));
            }
            "zone" => self.zones = vec![quoted(rest).into()],
            "zones" => {
                let count: usize = rest.split_once(' ').unwrap().0.parse().unwrap();
                self.zones = (0..count).map(|i| format!("{}{i}", quoted(rest))).collect();
            }
            "fleet" => {
                let mut words = rest.split(' ');
                let count: usize = words.next().unwrap().parse().unwrap();
                let weights: Vec<_> = words.next().unwrap().split(',').map(weight).collect();
                for (i, weight) in weights.iter().cycle().take(count).enumerate() {
                    let zone = self.zones.iter().cycle().nth(i).cloned();
                    self.members.push(Member {
                        weight: *weight,
                        zone,
                        version: self.version.clone(),
                        ..Member::named(InstanceId::new(format!("{}{i}", quoted(rest))).unwrap())
                    });
                }
            }
            _ => panic!("unknown line: {line}"),
        }
    }

    fn add(&mut self, id: InstanceId, weight: Weight, state: MemberState) {
        let (zone, version) = (self.zones.first().cloned(), self.version.clone());
        self.members.push(Member { weight, state, zone, version, ..Member::named(id) });
    }

    fn view(&self) -> View {
        View::new(1, self.members.clone())
    }

    fn placed(&mut self) -> &SlotOwners {
        if self.placed.is_none() {
            let placed = SlotOwners::of_view(&self.view(), self.params);
            assert_eq!(
                IncrementalRing::new(self.params).place_view(&self.view()),
                placed,
                "the ring that is kept places like the simple one"
            );
            self.placed = Some(placed);
        }
        self.placed.as_ref().unwrap()
    }

    fn ask(&mut self, question: &str) -> String {
        let (verb, rest) = question.split_once(' ').unwrap_or((question, ""));
        let name = |owner: Option<&InstanceId>| owner.map_or_else(|| "nobody".into(), |id| format!("\"{id}\""));
        match verb {
            "hash" => format!("{:016x}", Key::read(rest).key_hash()),
            "slot" => slot_of(Key::read(of_slots(rest).0).key_hash(), of_slots(rest).1).to_string(),
            "slot-of-hash" => slot_of(u64::from_str_radix(of_slots(rest).0, 16).unwrap(), of_slots(rest).1).to_string(),
            "start" => format!("{:016x}", slot_start(of_slots(rest).0.parse().unwrap(), of_slots(rest).1)),
            "point" => {
                let i: u32 = rest.split_once(' ').unwrap().0.parse().unwrap();
                format!("{:016x}", hash_bytes(&[quoted(rest).as_bytes(), &i.to_le_bytes()].concat()))
            }
            "replicas" => {
                let (n, which) = rest.split_once(' ').unwrap();
                let n: usize = n.parse().unwrap();
                let replicas = Replicas::of_view(&self.view(), self.params, n);
                let slot = which.parse().unwrap_or_else(|_| slot_of(Key::read(which).key_hash(), self.params.slots));
                let list: Vec<_> = replicas.owners_of_slot(slot, n).map(|id| name(Some(id))).collect();
                if list.is_empty() { name(None) } else { list.join(", ") }
            }
            "replicas-digest" => self.replicas_digest(rest.parse().unwrap()),
            "version-order" => {
                let (one, other) = quoted(rest).split_once("\" \"").unwrap();
                let order = Version::of(Some(one)).cmp(&Version::of(Some(other)));
                ["older", "same", "newer"][usize::try_from(order as i8 + 1).unwrap()].into()
            }
            "successors" => {
                let successors = Succession::of_view(&self.view(), self.params, &BTreeSet::new(), &self.holders);
                runs(self.params.slots, |slot| successors.owner(&Resource::Slot(slot)))
            }
            "owners" => {
                let (slots, placed) = (self.params.slots, self.placed());
                runs(slots, |slot| placed.owner_of_slot(slot))
            }
            "digest" => digest(self.placed()),
            "owns" => self.placed().slots_of(&id(rest)).len().to_string(),
            "owner-of-slot" => name(self.placed().owner_of_slot(rest.parse().unwrap())),
            "owner" => name(ViewPlacement::of_view(&self.view(), self.params).unwrap().owner(&Key::read(rest))),
            _ => panic!("unknown question: {question}"),
        }
    }

    fn replicas_digest(&mut self, n: usize) -> String {
        let replicas = Replicas::of_view(&self.view(), self.params, n);
        let (slots, members) = (self.params.slots, self.placed().members());
        let position = |id: &InstanceId| u32::try_from(members.binary_search_by(|(known, _)| known.cmp(id)).unwrap()).unwrap();
        let positions = (0..slots).flat_map(|slot| replicas.owners_of_slot(slot, n).map(position));
        format!("{:016x}", hash_bytes(&positions.flat_map(u32::to_le_bytes).collect::<Vec<_>>()))
    }
}

fn params(words: &str) -> PlacementParams {
    let mut params = PlacementParams::default();
    for (name, value) in words.split(' ').map(|word| word.split_once('=').unwrap()) {
        match name {
            "placement" => params.kind = PlacementKind::named(value).unwrap(),
            "slots" => params.slots = value.parse().unwrap(),
            "virtual_nodes" => params.virtual_nodes = value.parse().unwrap(),
            "load_margin" => params.load_margin = LoadMargin::parse(value).unwrap(),
            _ => panic!("unknown constant: {name}"),
        }
    }
    params.validated().unwrap()
}

/// Every slot's owner, equal neighbours written once.
fn runs<'a>(slots: u32, owner: impl Fn(u32) -> Option<&'a InstanceId>) -> String {
    let owners: Vec<_> = (0..slots).map_while(owner).collect();
    let mut text = String::new();
    let mut first = 0;
    for run in owners.chunk_by(|a, b| a == b) {
        let (comma, last) = (if first == 0 { "" } else { ", " }, first + run.len() - 1);
        let span = if first == last { first.to_string() } else { format!("{first}-{last}") };
        write!(text, "{comma}\"{}\" {span}", run[0]).unwrap();
        first = last + 1;
    }
    if text.is_empty() { "nobody".into() } else { text }
}

fn digest(placed: &SlotOwners) -> String {
    let position = |slot| placed.members().binary_search_by(|(id, _)| id.cmp(placed.owner_of_slot(slot).unwrap())).unwrap();
    let bytes: Vec<u8> = (0..placed.params().slots).flat_map(|slot| u32::try_from(position(slot)).unwrap().to_le_bytes()).collect();
    format!("{:016x}", hash_bytes(&bytes))
}

/// Replays one file and checks that it has at least `least` questions, so that an emptied file is noticed.
fn replay(file: &str, least: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (mut stage, mut asked, mut wrong) = (Stage::default(), 0, String::new());
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(" => ") {
            None => stage.apply(line),
            Some((question, expected)) => {
                asked += 1;
                let answer = stage.ask(question);
                if answer != expected {
                    writeln!(wrong, "{file}:{number}: {question}\n  computed {answer}\n  written  {expected}").unwrap();
                }
            }
        }
    }
    assert!(wrong.is_empty(), "protocols never change; a mismatch is an error in the code:\n{wrong}");
    assert!(asked >= least, "{file} has {asked} vectors, at least {least} are expected");
}

#[test]
fn hashes() {
    replay("hashes.txt", 70);
}

#[test]
fn rings() {
    replay("circles.txt", 40);
}

#[test]
fn fleets() {
    replay("fleets.txt", 40);
}

#[test]
fn quotas() {
    replay("quotas.txt", 28);
}

#[test]
fn replicas() {
    replay("replicas.txt", 20);
}

#[test]
fn versions() {
    replay("versions.txt", 30);
}

#[test]
fn key_placements() {
    replay("key_placements.txt", 110);
}
