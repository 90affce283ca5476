// The transfers of a pattern file on SimGrid's torus: what each link delivered, when each transfer ended, and what that took.
//
//   torus WIDTH HEIGHT BYTES_PER_S LATENCY_NS PATTERN LINKS_OUT [SimGrid options]
//
// PATTERN: lines of `start_ns source destination bytes`, in order of time. LINKS_OUT gets lines of `from to bytes`.

#include <simgrid/s4u.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

struct Transfer {
  double start_s;
  unsigned long source, destination, bytes;
};

static sg4::Host* host(unsigned long id) {
  return sg4::Host::by_name("node-" + std::to_string(id));
}

static void build(unsigned long width, unsigned long height, double bytes_per_s, double latency_s) {
  sg4::ClusterCallbacks callbacks([](sg4::NetZone* zone, const std::vector<unsigned long>&, unsigned long id) {
    auto* made = zone->create_host("node-" + std::to_string(id), 1e9)->seal();
    return std::make_pair(made->get_netpoint(), static_cast<simgrid::kernel::routing::NetPoint*>(nullptr));
  });
  sg4::create_torus_zone("torus", nullptr, {width, height}, callbacks, bytes_per_s, latency_s, sg4::Link::SharingPolicy::SPLITDUPLEX)
      ->seal();
}

// The directed link between each node and its four neighbours, found by asking for the route.
static std::map<sg4::Link*, std::string> links_by_ends(unsigned long width, unsigned long height) {
  std::map<sg4::Link*, std::string> found;
  for (unsigned long node = 0; node < width * height; node++) {
    unsigned long x = node % width, y = node / width;
    for (unsigned long next : {(x + 1) % width + y * width, (x + width - 1) % width + y * width, x + (y + 1) % height * width,
                               x + (y + height - 1) % height * width}) {
      std::vector<sg4::Link*> route;
      double latency = 0;
      host(node)->route_to(host(next), route, &latency);
      if (route.size() != 1) {
        std::fprintf(stderr, "%lu to %lu is not one link but %zu\n", node, next, route.size());
        std::exit(1);
      }
      found[route[0]] = std::to_string(node) + " " + std::to_string(next);
    }
  }
  return found;
}

int main(int argc, char* argv[]) {
  sg4::Engine engine(&argc, argv);
  if (argc != 7) {
    std::fprintf(stderr, "usage: %s WIDTH HEIGHT BYTES_PER_S LATENCY_NS PATTERN LINKS_OUT [SimGrid options]\n", argv[0]);
    return 2;
  }
  unsigned long width = std::stoul(argv[1]), height = std::stoul(argv[2]);
  build(width, height, std::stod(argv[3]), std::stod(argv[4]) * 1e-9);
  auto ends = links_by_ends(width, height);

  std::vector<Transfer> pattern;
  std::ifstream input(argv[5]);
  for (double start_ns; input >> start_ns;) {
    Transfer transfer{start_ns * 1e-9, 0, 0, 0};
    input >> transfer.source >> transfer.destination >> transfer.bytes;
    pattern.push_back(transfer);
  }

  std::vector<sg4::CommPtr> running;
  running.reserve(pattern.size());
  sg4::Actor::create("driver", host(0), [&] {
    for (const auto& transfer : pattern) {
      sg4::this_actor::sleep_until(transfer.start_s);
      running.push_back(sg4::Comm::sendto_async(host(transfer.source), host(transfer.destination), transfer.bytes));
    }
    for (auto& comm : running)
      comm->wait();
  });
  auto begin = std::chrono::steady_clock::now();
  engine.run();
  double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  // What each finished transfer brought over the links of its route. The plugin that integrates loads over time (sg_link_get_cum_load)
  // counted 7 to 8 % more than was sent.
  double taken_s = 0;
  std::map<sg4::Link*, unsigned long> delivered;
  for (size_t i = 0; i < running.size(); i++) {
    taken_s += running[i]->get_finish_time() - running[i]->get_start_time();
    if (running[i]->get_state() != sg4::Activity::State::FINISHED || running[i]->get_remaining() > 0)
      continue;
    std::vector<sg4::Link*> route;
    double latency = 0;
    host(pattern[i].source)->route_to(host(pattern[i].destination), route, &latency);
    for (auto* link : route)
      delivered[link] += pattern[i].bytes;
  }
  std::ofstream output(argv[6]);
  for (auto& [link, name] : ends)
    output << name << " " << delivered[link] << "\n";
  std::printf("transfers %zu\nmean_transfer_us %.3f\nend_ms %.3f\nwall_s %.3f\nwall_us_per_transfer %.3f\n", pattern.size(),
              taken_s / pattern.size() * 1e6, sg4::Engine::get_clock() * 1e3, wall_s, wall_s / pattern.size() * 1e6);
  return 0;
}
