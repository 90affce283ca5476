// What a compiler does with templates of the standard library: a few hundred megabytes.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

template <int N> struct Record {
    std::map<std::string, std::vector<std::tuple<int, double, std::string>>> rows;
    std::unordered_map<int, std::variant<int, std::string, std::shared_ptr<Record>>> others;

    std::size_t work(std::size_t count) {
        for (std::size_t at = 0; at < count; at++) {
            auto &row = rows[std::to_string(at % (N + 7))];
            row.emplace_back(int(at), at / 3.0, "row");
            std::sort(row.begin(), row.end(), [](const auto &a, const auto &b) { return std::get<1>(b) < std::get<1>(a) + N; });
            others[int(at)] = at % 2 ? typename decltype(others)::mapped_type(std::string("odd")) : int(at);
        }
        std::function<std::size_t(std::size_t)> sum = [this](std::size_t last) {
            std::size_t total = N;
            for (const auto &[name, row] : rows) total += name.size() * row.size() + last;
            return total;
        };
        return sum(others.size());
    }
};

template <int... Numbers> std::size_t all(std::integer_sequence<int, Numbers...>) {
    return (Record<Numbers>().work(Numbers + 1) + ...);
}

bool matches(const std::string &text) { return std::regex_search(text, std::regex("(a|b)*c+[0-9]{2,}")); }

int main() { return int(all(std::make_integer_sequence<int, 6>())) & 127; }
