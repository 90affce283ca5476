package main

import "fmt"

func main() {
	m := map[int][]int{}
	for i := 0; i < 1000000; i++ {
		m[i*7919%1000003] = []int{i, i + 1}
	}
	s := 0
	for i := 0; i < 1000003; i++ {
		if v, ok := m[i]; ok {
			s = (s*31 + v[0]) % 1000000007
		}
	}
	fmt.Println(len(m), s)
}
