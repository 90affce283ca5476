-module(job).
-export([main/0]).
main() ->
    T = ets:new(t, [ordered_set]),
    [ets:insert(T, {I * 7919 rem 1000003, {I, integer_to_list(I)}}) || I <- lists:seq(0, 100000)],
    S = ets:foldl(fun({_, {I, L}}, A) -> (A * 31 + I + length(L)) rem 1000000007 end, 0, T),
    io:format("~p ~p~n", [ets:info(T, size), S]),
    Me = self(),
    Ps = [spawn(fun() -> L = [X * K || X <- lists:seq(1, 200000)], Me ! {K, lists:sum(lists:reverse(L))} end) || K <- lists:seq(1, 12)],
    io:format("~p ~p~n", [length(Ps), [receive {K, R} -> R end || K <- lists:seq(1, 12)]]),
    B = binary:copy(<<"abc">>, 20000000),
    io:format("~p~n", [erlang:md5(B)]),
    halt(0).
